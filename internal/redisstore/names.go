package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"unsafe"

	"github.com/stampedeguard/stampede/internal/store"
)

// maxKeyInName is the longest key that stands in key names as it is. A longer
// one stands there as its SHA-256: five names are sent with each acquire.
const maxKeyInName = 512

// A keyspace builds the names of keys and channels for one namespace. All names
// of one key hash to one Redis Cluster slot, whatever bytes the key holds.
type keyspace struct{ namespace string }

// newKeyspace checks the namespace: letters, digits and any of "._:-", so that
// it can neither open a hash tag nor run into the rest of a name.
func newKeyspace(namespace string) (keyspace, error) {
	if namespace == "" {
		return keyspace{}, errors.New("cache: Options.Namespace is empty: name the application, so that two of them can share a Redis")
	}
	if len(namespace) > 128 {
		return keyspace{}, fmt.Errorf("cache: Options.Namespace has %d bytes, at most 128 are allowed", len(namespace))
	}
	for _, c := range []byte(namespace) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			c == '.', c == '_', c == ':', c == '-':
		default:
			return keyspace{}, fmt.Errorf("cache: Options.Namespace %q holds %q: only letters, digits and \"._:-\" are allowed", namespace, c)
		}
	}
	return keyspace{namespace}, nil
}

// entry is the name of the key that holds k's entry; the other names of k start
// with it.
//
// Redis Cluster hashes the part between the first '{' and the next '}' of a
// name. If that part is empty, it hashes the whole name, and k's keys would
// lie in different slots. So a key that is empty or starts with '}' gets a '%'
// in front, and so does a key that starts with '%', to keep names apart.
func (s keyspace) entry(k string) string {
	before, k := s.around(k)
	return s.namespace + before + k + "}"
}

// around returns the rest of the name of the key that holds k's entry: before and after which
// stand the namespace and a brace.
func (s keyspace) around(k string) (before, safe string) {
	switch {
	case len(k) > maxKeyInName:
		sum := sha256.Sum256([]byte(k))
		return ":{%#", hex.EncodeToString(sum[:])
	case k == "" || k[0] == '}' || k[0] == '%':
		return ":{%", k
	}
	return ":{", k
}

// entryOf is entry for prefix+k.
func (s keyspace) entryOf(prefix, k string) string {
	if plain(prefix, k) {
		return s.namespace + ":{" + prefix + k + "}"
	}
	return s.entry(prefix + k)
}

// alive is the liveness channel of a process, which stands at its end in
// hexadecimal: acquire.lua puts others in its place.
func (s keyspace) alive(p store.Process) string { return s.namespace + ":alive:" + p.String() }

// invalidations is the channel on which every change is told to near caches. It
// belongs to no slot: in a cluster PUBLISH reaches all nodes.
func (s keyspace) invalidations() string { return s.namespace + ":invalidations" }

// Invalidations travel with their kind in front.
const (
	keyChanged = "k"
	tagChanged = "t"
)

// clock is the name of the clock of tags: one for all of them.
func (s keyspace) clock() string { return s.namespace + ":{tags}:clock" }

// tag is the name of a tag's record. No name of a key ends like that.
func (s keyspace) tag(t string) string { return s.entry(t) + ":tag" }

// names are all names of one key, made once for all commands of a lease.
type names struct{ entry, lease, tries, pause, failures, unfailed, wake keyArg }

// noneFailed stands in a key's name where there is no token.
const noneFailed = "none"

func (s keyspace) names(k string) *names {
	n := &names{}
	n.set(s, k)
	return n
}

// set builds the names of k. They share their memory: one allocation instead of seven.
func (n *names) set(s keyspace, k string) {
	before, k := s.around(k)
	size := len(s.namespace) + len(before) + len(k) + len("}")
	all := make([]byte, 0, 7*size+len(":lease:tries:pause:failures:failed:"+noneFailed+":wake"))
	next := func(suffix string) keyArg {
		start := len(all)
		all = append(append(append(append(append(all, s.namespace...), before...), k...), '}'), suffix...)
		return keyArg(unsafe.String(&all[start], len(all)-start)) // nothing is written twice: there is room for all
	}
	n.entry, n.lease, n.tries, n.pause = next(""), next(":lease"), next(":tries"), next(":pause")
	n.failures, n.unfailed, n.wake = next(":failures"), next(":failed:"+noneFailed), next(":wake")
}

// failed is the key that tells how the fetch of token t failed. The token
// stands in it in hexadecimal: raw bytes could end in '}' and so be the name of
// another key's entry.
func (n *names) failed(t store.Token) *keyArg {
	if t.IsZero() {
		return &n.unfailed
	}
	name := n.unfailed[:len(n.unfailed)-len(noneFailed)] + keyArg(t.String())
	return &name
}

// A keyArg is a name as an argument of a command: a pointer to it needs no allocation. A
// printed command shows the name.
type keyArg string

func (k keyArg) String() string { return string(k) }

// MarshalBinary implements [encoding.BinaryMarshaler].
func (k keyArg) MarshalBinary() ([]byte, error) { return bytesOf(string(k)), nil }

// A bytesArg is bytes as an argument of a command: a pointer to them needs no allocation.
type bytesArg []byte

func (b bytesArg) String() string { return string(b) }

// MarshalBinary implements [encoding.BinaryMarshaler].
func (b bytesArg) MarshalBinary() ([]byte, error) { return b, nil }

// entries is entry for many keys, of which each has the prefix in front. Their names
// share their memory.
func (s keyspace) entries(prefix string, keys []string) []string {
	size := 0
	for _, k := range keys {
		size += len(s.namespace) + len(":{}") + min(len(prefix)+len(k), maxKeyInName)
	}
	before, all := s.namespace+":{"+prefix, make([]byte, 0, size)
	names := make([]string, len(keys))
	for i, k := range keys {
		if !plain(prefix, k) {
			names[i] = s.entry(prefix + k)
			continue
		}
		start := len(all)
		all = append(append(append(all, before...), k...), '}')
		// Nothing is written twice: there is room for all.
		names[i] = unsafe.String(&all[start], len(all)-start)
	}
	return names
}

// plain reports whether prefix+k stands in its names as it is: see entry.
func plain(prefix, k string) bool {
	if len(prefix)+len(k) > maxKeyInName {
		return false
	}
	first := prefix
	if prefix == "" {
		first = k
	}
	return first != "" && first[0] != '}' && first[0] != '%'
}

// bytesOf is a string's bytes without a copy. The client made the strings of replies of
// bytes that nothing else refers to; names are only read.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
