package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// Whether an entry's tags still hold is looked up in the records of its tags, by commands
// that are sent after the call came that reads the entry: so a deletion that returned
// before is seen.

// tags are the records of tags and their clock.
type tags struct {
	*core
	feeds   *store.Feeds
	carried tagTable
}

// A found is the reading of a tag's record, or of the clock.
type found struct {
	store.TagRecord
	n   uint64 // the clock's
	err error  // classified
}

var recordFields = []any{"e", "d", "x", "n", "u"}

// addRecords adds the commands that read the records: each once, for all requests of the
// batch that need it.
func (b *readBatch) addRecords(ctx context.Context, rs []*request, n int) {
	b.records = make([]*redis.SliceCmd, 0, n)
	if len(rs) > 1 {
		b.places = make(map[string]int, n)
	}
	for _, r := range rs {
		for _, name := range r.reads.records {
			if _, asked := b.places[name]; asked {
				continue
			}
			if b.places != nil {
				b.places[name] = len(b.records)
			}
			c := redis.NewSliceCmd(ctx, append([]any{"hmget", name}, recordFields...)...)
			b.records = append(b.records, c)
		}
	}
}

// found is the i-th record that was read.
func (q *reads) found(n *node, i int) found {
	if q.batch.places != nil {
		i = q.batch.places[q.records[i]]
	}
	fields, err := q.batch.records[i].Result()
	switch {
	case err == nil:
		return parseRecord(fields)
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // foreign: nothing is known
		return found{}
	}
	return found{err: n.classify("read", err)}
}

// parseRecord makes an unknown record of one that it can't read, and of one that is
// unsettled: a deletion may have been evicted before it.
func parseRecord(fields []any) found {
	var f found
	text := func(i int) string {
		if i >= len(fields) {
			return ""
		}
		s, _ := fields[i].(string)
		return s
	}
	if epoch := text(0); len(epoch) == len(f.Epoch) {
		f.Epoch, f.Known = store.Epoch([]byte(epoch)), text(4) != "1"
	}
	for i, to := range []*uint64{&f.Deleted, &f.Expired, &f.n} {
		if s := text(1 + i); s != "" {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				return found{}
			}
			*to = n
		}
	}
	return f
}

// judge judges a reading by the records of its tags.
func judge(r *store.Reading, records []found) error {
	verdict := store.TagHolds
	for i := range records {
		if records[i].err != nil {
			return fmt.Errorf("the entry's tags: %w", records[i].err)
		}
		verdict = max(verdict, records[i].Judge(&r.Entry))
	}
	r.Heed(verdict)
	return nil
}

// recordsOf are the names of the records of tags.
func (s *tags) recordsOf(tags []string) []string {
	names := make([]string, len(tags))
	for i, t := range tags {
		names[i] = s.names.tag(t)
	}
	return names
}

// A lookUp is the reads of some records, on all the nodes they are on at once.
type lookUp struct {
	records []found // in the order of the names
	xs      []exchanged
}

func (s *tags) startLookUp(ctx context.Context, names []string) *lookUp {
	l := &lookUp{records: make([]found, len(names))}
	l.xs = s.exchange(ctx, names, nil, func(i int, err error) { l.records[i].err = err }, func(n *node, places []int) (*queue, *request) {
		return n.reads, &request{reads: &reads{records: at(names, places)}, weight: len(places)}
	})
	return l
}

// split parts the names of records into those on the given node and the others.
func (s *tags) split(n *node, names []string) (own, others []string) {
	if n.single {
		return names, nil
	}
	for _, name := range names {
		if on, err := s.topo.node(name); err == nil && on == n {
			own = append(own, name)
		} else {
			others = append(others, name)
		}
	}
	return own, others
}

// hasEnded reports whether await need not wait.
func (l *lookUp) hasEnded() bool {
	for _, x := range l.xs {
		if len(x.r.done) == 0 {
			return false
		}
	}
	return true
}

// await waits for the records, or for the end of ctx or of the store.
func (l *lookUp) await(ctx context.Context) []found {
	for _, x := range l.xs {
		_, err := x.await(ctx)
		for j, i := range x.places {
			if err != nil {
				l.records[i].err = err
			} else {
				l.records[i] = x.r.reads.found(x.n, j)
			}
		}
	}
	return l.records
}

// checkTags checks the tags of readings that were just made. If the tags of a reading can't
// be looked up, the reading may not be used: its error says so.
func (s *tags) checkTags(ctx context.Context, readings []*store.Reading) []error {
	errs := make([]error, len(readings))
	places := map[string]int{} // of the records
	var names []string
	needed := make([][]string, len(readings))
	for i, r := range readings {
		needed[i] = s.recordsOf(r.Entry.Tags)
		for _, name := range needed[i] {
			if _, ok := places[name]; !ok {
				places[name] = len(names)
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return errs
	}
	all := s.startLookUp(ctx, names).await(ctx)
	for i, r := range readings {
		records := make([]found, len(needed[i]))
		for j, name := range needed[i] {
			records[j] = all[places[name]]
		}
		errs[i] = judge(r, records)
	}
	return errs
}

// The tags that an entry carried when it was last read are kept in mind, so that their
// records can be asked for together with the entry the next time: else each read of it
// would be two round trips.
const rememberedTags = 1 << 13

type tagTable struct{ slots atomic.Pointer[tagSlots] }

type tagSlots struct {
	seed maphash.Seed
	at   [rememberedTags]atomic.Pointer[carried]
}

// carried are an entry's tags and the names of their records.
type carried struct {
	entry         string
	tags, records []string
}

func (t *tagSlots) slot(entry string) *atomic.Pointer[carried] {
	return &t.at[maphash.String(t.seed, entry)%rememberedTags]
}

// of returns the tags that the entry of that name carried, or nil.
func (t *tagTable) of(entry string) *carried {
	slots := t.slots.Load()
	if slots == nil {
		return nil // no tag was ever met: nothing is to be paid for them
	}
	if c := slots.slot(entry).Load(); c != nil && c.entry == entry {
		return c
	}
	return nil
}

func (t *tagTable) remember(c *carried) {
	slots := t.slots.Load()
	if slots == nil {
		t.slots.CompareAndSwap(nil, &tagSlots{seed: maphash.MakeSeed()})
		slots = t.slots.Load()
	}
	slots.slot(c.entry).Store(c)
}

func (t *tagTable) forget(c *carried) {
	t.slots.Load().slot(c.entry).CompareAndSwap(c, nil)
}
