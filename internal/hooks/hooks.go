// Package hooks lets tests take single rules out of the library, to show that
// a check of what the rule is there for can fail, or have a rare thing always
// happen. Nothing but tests sets them.
package hooks

import "sync/atomic"

// SharingRuleOff lets callers take a flight's outcome however late they came. It
// is looked at only for a caller whom the rule would send round again.
var SharingRuleOff atomic.Bool

// TagCheckOff has a fill store what it brings even if a tag was deleted while it
// was fetched, as if nobody had looked.
var TagCheckOff atomic.Bool

// Unread has each Get ask for the lease without reading first, as it otherwise does
// after a row of misses.
var Unread atomic.Bool
