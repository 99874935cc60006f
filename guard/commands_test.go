package guard_test

import (
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// executed counts the commands that the server has executed: those of scripts, and the
// scripts as evalsha. Commands that come by the clock don't count.
func executed(t *testing.T, server *redistest.Server) (total, scripts int64) {
	t.Helper()
	all, err := server.Commands(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ping", "time", "unsubscribe", "info", "hello", "client|setinfo", "client|maint_notifications"} {
		delete(all, name)
	}
	for _, n := range all {
		total += n
	}
	return total, all["evalsha"]
}

// The formula is that of docs/scaling.md. A process on a busy machine looks at the holder
// more often, or finds the value stored.
func TestWaitingProcessCostsEightCommands(t *testing.T) {
	const waiting = 5
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var fleet []*guard.Guard[string]
	for range 1 + waiting {
		fleet = append(fleet, onClient(t, server.Client(), policy()))
	}
	callers(fleet, 1, "first", (&origin{}).fetch) // the scripts are loaded, and the clients connected
	before, scriptsBefore := executed(t, server)
	allGot(t, callers(fleet, 1, "k", (&origin{takes: 80 * time.Millisecond}).fetch))
	after, scriptsAfter := executed(t, server)
	const fetches, waits, looks = 13, 7, 4 // without TIME, and UNSUBSCRIBE
	more := max(0, scriptsAfter-scriptsBefore-2-2*waiting)
	if n, most := after-before, fetches+waits*waiting+looks*more; n > most {
		t.Errorf("%d commands for 1 process that fetches and %d that wait, with %d later looks; want at most %d", n, waiting, more, most)
	}
}
