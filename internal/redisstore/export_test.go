package redisstore

import "github.com/stampedeguard/stampede/internal/store"

// TagNames are the names of the clock of tags and of a tag's record.
func TagNames(namespace, tag string) (clock, record string) {
	s := keyspace{namespace}
	return s.clock(), s.tag(tag)
}

// KeyNames are the names of keys and channels for a key.
func KeyNames(namespace, key string, t store.Token) []string {
	s := keyspace{namespace}
	n := s.names(key)
	return []string{n.entry, n.lease, n.tries, n.pause, n.failures, n.failed(t), n.wake, s.tag(key)}
}
