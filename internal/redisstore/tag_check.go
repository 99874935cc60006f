package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// Whether an entry's tags still hold is looked up in the records of its tags, by commands
// that are sent after the call came that reads the entry: so a deletion that returned
// before is seen.

// A found is what was read under the name of a tag's record, or of the clock.
type found struct {
	store.TagRecord
	n   uint64 // the clock's
	err error  // classified
}

var recordFields = []any{"e", "d", "x", "n", "u"}

// recordCommands adds those that read the records.
func (q *reads) recordCommands(ctx context.Context, pipe redis.Pipeliner) []*redis.SliceCmd {
	cmds := make([]*redis.SliceCmd, len(q.records))
	for i, name := range q.records {
		cmds[i] = redis.NewSliceCmd(ctx, append([]any{"hmget", name}, recordFields...)...)
		_ = pipe.Process(ctx, cmds[i])
	}
	return cmds
}

func foundRecords(n *node, cmds []*redis.SliceCmd) []found {
	all := make([]found, len(cmds))
	for i, c := range cmds {
		fields, err := c.Result()
		switch {
		case err == nil:
			all[i] = parseRecord(fields)
		case redis.HasErrorPrefix(err, "WRONGTYPE"): // foreign: nothing is known
		default:
			all[i].err = fmt.Errorf("the entry's tags: %w", n.classify("read", err))
		}
	}
	return all
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
func judge(r *store.Reading, names []string, records map[string]found) error {
	verdict := store.TagHolds
	for _, name := range names {
		f := records[name]
		if f.err != nil {
			return f.err
		}
		verdict = max(verdict, f.Judge(&r.Entry))
	}
	r.Heed(verdict)
	return nil
}

// records are the names of the records of tags.
func (s *Store) recordsOf(tags []string) []string {
	names := make([]string, len(tags))
	for i, t := range tags {
		names[i] = s.names.tag(t)
	}
	return names
}

// lookUp reads records on all the nodes they are on at once.
func (s *Store) lookUp(ctx context.Context, names []string) map[string]found {
	records := make(map[string]found, len(names))
	xs := s.exchange(ctx, names, nil, func(i int, err error) { records[names[i]] = found{err: err} }, func(n *node, places []int) (*queue, *request) {
		return n.reads, &request{reads: &reads{records: at(names, places)}, weight: len(places)}
	})
	for _, x := range xs {
		_, err := x.n.await(ctx, x.r)
		for j, i := range x.places {
			if err != nil {
				records[names[i]] = found{err: fmt.Errorf("the entry's tags: %w", err)}
			} else {
				records[names[i]] = x.r.reads.found[j]
			}
		}
	}
	return records
}

// checkTags checks the tags of readings that were just made. It returns an error for each
// reading whose tags could not be looked up, and which may not be used.
func (s *Store) checkTags(ctx context.Context, readings []*store.Reading) []error {
	errs := make([]error, len(readings))
	seen := map[string]bool{}
	var names []string
	for _, r := range readings {
		for _, name := range s.recordsOf(r.Entry.Tags) {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return errs
	}
	records := s.lookUp(ctx, names)
	for i, r := range readings {
		errs[i] = judge(r, s.recordsOf(r.Entry.Tags), records)
	}
	return errs
}

// A taggedRead is the read of one entry and, if the entry carries tags, of their records:
// together, if the entry carried the same tags when it was last read, or else one after the
// other. Senders carry it on; nothing waits in between.
type taggedRead struct {
	s     *Store
	n     *node
	to    store.Reader
	name  string
	known *carried // what the entry is expected to carry; nil: no tags

	mu      sync.Mutex
	pending int
	reading *store.Reading
	err     error
	records map[string]found
	names   []string // of the records that were asked for last
	again   bool     // the records were asked for after the entry was read
}

// send asks for the entry, and for the records that it is expected to need.
func (t *taggedRead) send(ctx context.Context) {
	q := &reads{entries: []string{t.name}, readers: []store.Reader{t.to}}
	r := &request{reads: q, weight: 1, bytes: int(t.n.valueSize.Load()), values: ctx}
	if t.known == nil {
		r.then = func(r *request) {
			reading := &store.Reading{}
			err := r.err
			if err == nil {
				err = q.reading(t.n, 0, reading)
			}
			t.entryRead(ctx, reading, err)
		}
		t.n.reads.submit(r)
		return
	}
	t.names = t.known.records
	t.pending = 1
	r.then = func(r *request) {
		reading, err := &store.Reading{}, r.err
		if err == nil {
			err = q.reading(t.n, 0, reading)
		}
		t.done(ctx, func() { t.reading, t.err = reading, err })
	}
	t.ask(ctx, r)
}

// ask sends the reads of the records, those of the entry's node with the given request.
func (t *taggedRead) ask(ctx context.Context, with *request) {
	t.records = map[string]found{}
	groups := t.s.byNode(t.names, func(i int, err error) { t.records[t.names[i]] = found{err: err} })
	requests := map[*node]*request{}
	for n, places := range groups {
		names := at(t.names, places)
		if n == t.n && with != nil {
			with.reads.records = names
			then := with.then
			with.then = func(r *request) {
				t.take(names, r)
				then(r)
			}
			continue
		}
		t.pending++
		requests[n] = &request{reads: &reads{records: names}, weight: len(names), values: ctx, then: func(r *request) {
			t.done(ctx, func() { t.takeLocked(names, r) })
		}}
	}
	for n, r := range requests {
		n.reads.submit(r)
	}
	if with != nil {
		t.n.reads.submit(with)
	}
}

func (t *taggedRead) take(names []string, r *request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.takeLocked(names, r)
}

func (t *taggedRead) takeLocked(names []string, r *request) {
	for i, name := range names {
		if r.err != nil {
			t.records[name] = found{err: fmt.Errorf("the entry's tags: %w", r.err)}
		} else {
			t.records[name] = r.reads.found[i]
		}
	}
}

// done takes in one of the answers that are waited for, and goes on after the last.
func (t *taggedRead) done(ctx context.Context, note func()) {
	t.mu.Lock()
	note()
	t.pending--
	last := t.pending == 0
	t.mu.Unlock()
	if !last {
		return
	}
	if !t.again {
		t.entryRead(ctx, t.reading, t.err)
		return
	}
	t.judge()
}

// entryRead goes on once the entry is there, with the records that were expected.
func (t *taggedRead) entryRead(ctx context.Context, reading *store.Reading, err error) {
	if err != nil {
		t.to.Answered(nil, err)
		return
	}
	if !reading.Tagged() {
		if t.known != nil && reading.Found {
			t.s.carried.forget(t.known)
		}
		t.to.Answered(reading, nil)
		return
	}
	t.reading = reading
	if t.known != nil && slices.Equal(t.known.tags, reading.Entry.Tags) {
		t.judge()
		return
	}
	t.known = &carried{t.name, reading.Entry.Tags, t.s.recordsOf(reading.Entry.Tags)}
	t.s.carried.remember(t.known)
	t.names, t.again = t.known.records, true
	t.pending = 1 // this call itself: no answer may come before all are asked for
	t.ask(ctx, nil)
	t.done(ctx, func() {})
}

func (t *taggedRead) judge() {
	if err := judge(t.reading, t.known.records, t.records); err != nil {
		t.to.Answered(nil, err)
		return
	}
	t.to.Answered(t.reading, nil)
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
