package cache

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Whether an entry's tags still hold is looked up in the records of its tags,
// after the call came that reads the entry: so a deletion that returned before
// is seen. The records are read in the batches of the nodes that they are on,
// once for all who share a batch.

// A foundRecord is what was read under the name of a tag's record, or of the
// clock.
type foundRecord struct {
	tagRecord
	n   uint64 // the clock's
	err error
}

var recordFields = [...]string{"e", "d", "x", "n", "u"}

func recordCmds(ctx context.Context, names []string) []*redis.SliceCmd {
	if len(names) == 0 {
		return nil
	}
	cmds := make([]*redis.SliceCmd, len(names))
	for i, name := range names {
		cmds[i] = redis.NewSliceCmd(ctx, "hmget", name, recordFields[0], recordFields[1], recordFields[2], recordFields[3], recordFields[4])
	}
	return cmds
}

func answeredRecords(cmds []*redis.SliceCmd) bool {
	for _, c := range cmds {
		if len(c.Val()) > 0 || redis.HasErrorPrefix(c.Err(), "WRONGTYPE") {
			return true
		}
	}
	return false
}

func foundRecords(cmds []*redis.SliceCmd) []foundRecord {
	if len(cmds) == 0 {
		return nil
	}
	found := make([]foundRecord, len(cmds))
	for i, c := range cmds {
		fields, err := c.Result()
		switch {
		case err == nil:
			found[i] = parseRecord(fields)
		case redis.HasErrorPrefix(err, "WRONGTYPE"): // foreign: nothing is known
		default:
			found[i].err = classify("read", err)
		}
	}
	return found
}

// parseRecord makes a record that isn't known of one that it can't read, and of one
// that is unsettled: a deletion may have been evicted before it.
func parseRecord(fields []any) foundRecord {
	var f foundRecord
	text := func(i int) string {
		if i >= len(fields) {
			return ""
		}
		s, _ := fields[i].(string)
		return s
	}
	if epoch := text(0); len(epoch) == len(f.epoch) {
		f.epoch, f.known = Epoch([]byte(epoch)), text(4) != "1"
	}
	for i, to := range []*uint64{&f.deleted, &f.expired, &f.n} {
		s := text(1 + i)
		if s == "" {
			continue
		}
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return foundRecord{}
		}
		*to = n
	}
	return f
}

// A lookup asks for records, on all the nodes they are on at once.
type lookup struct {
	s     *Redis
	asked []askedNode
}

type askedNode struct {
	n     *node
	names nameSet
	bt    *batch
	away  <-chan struct{}
	err   error // why they could not be asked for
}

// add notes a name to be asked for.
func (l *lookup) add(name string) {
	n, err := l.s.topo.node(name)
	for i := range l.asked {
		if a := &l.asked[i]; err == nil && a.n == n && a.bt == nil {
			a.names.add(name)
			return
		}
	}
	l.asked = append(l.asked, askedNode{n: n, err: err})
	l.asked[len(l.asked)-1].names.add(name)
}

// send joins the batches that collect.
func (l *lookup) send() {
	for i := range l.asked {
		a := &l.asked[i]
		switch {
		case a.err != nil || a.bt != nil:
		case !a.n.breaker.allow():
			a.err = a.n.explain(errBreakerOpen)
		default:
			a.away = a.n.breaker.away()
			a.bt = a.n.reads.join(a.n.reads.next, func(bt *batch) {
				for _, name := range a.names.names {
					bt.records.add(name)
				}
			})
			if a.bt == nil {
				a.err = ErrClosed
			}
		}
	}
}

// await waits for the answers and adds them to found.
func (l *lookup) await(ctx context.Context, found map[string]foundRecord) {
	for _, a := range l.asked {
		err := a.err
		if err == nil {
			err = a.n.reads.await(ctx, a.away, a.bt.done)
		}
		if err == nil {
			err = a.bt.err
		}
		if a.n != nil {
			err = a.n.explain(err)
		}
		for _, name := range a.names.names {
			if err != nil {
				found[name] = foundRecord{err: err}
			} else {
				found[name] = a.bt.found[a.bt.records.place(name)]
			}
		}
	}
}

// lookUp reads records.
func (s *Redis) lookUp(ctx context.Context, names ...string) map[string]foundRecord {
	l := lookup{s: s}
	for _, name := range names {
		l.add(name)
	}
	l.send()
	found := make(map[string]foundRecord, len(names))
	l.await(ctx, found)
	return found
}

// judgeBy judges a reading by the records of its tags.
func (r *Reading) judgeBy(names []string, found func(name string) foundRecord) error {
	verdict := tagHolds
	for _, name := range names {
		f := found(name)
		if f.err != nil {
			return f.err
		}
		verdict = max(verdict, f.judge(&r.Entry))
	}
	r.judged(verdict)
	return nil
}

// checkTags checks the tags of readings that were just made, with commands sent
// after the call. It returns nil, or an error for each reading whose tags could
// not be looked up: that one may not be used.
func (s *Redis) checkTags(ctx context.Context, readings []*Reading) []error {
	names := make([][]string, len(readings))
	l := lookup{s: s}
	for i, r := range readings {
		if r != nil && r.tagged() {
			names[i] = s.recordNames(r.Entry.Tags)
			for _, name := range names[i] {
				l.add(name)
			}
		}
	}
	if len(l.asked) == 0 {
		return nil
	}
	l.send()
	found := map[string]foundRecord{}
	l.await(ctx, found)
	errs := make([]error, len(readings))
	for i, r := range readings {
		if names[i] != nil {
			errs[i] = r.judgeBy(names[i], func(name string) foundRecord { return found[name] })
		}
	}
	return errs
}

func (s *Redis) recordNames(tags []string) []string {
	names := make([]string, len(tags))
	for i, t := range tags {
		names[i] = s.keys.tag(t)
	}
	return names
}

// Stamp implements [Store]. Concurrent calls share a command.
func (s *Redis) Stamp(ctx context.Context) (Stamp, error) {
	if s.closing.Load() {
		return Stamp{}, ErrClosed
	}
	if err := ended(ctx); err != nil {
		return Stamp{}, err
	}
	taken, name := time.Now(), s.keys.clock()
	f := s.lookUp(ctx, name)[name]
	if f.err != nil {
		return Stamp{}, f.err
	}
	if !f.known {
		now, _, err := s.runClock(ctx, 0, Stamp{}, nil)
		return now, err
	}
	return Stamp{Epoch: f.epoch, N: f.n, taken: taken}, nil
}

// The tags that an entry carried when it was last read are kept in mind, so that
// their records can be asked for together with the entry the next time: else
// each read of it would be two round trips. What is forgotten, or has changed,
// costs that.
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

// of returns what the entry of that name carried, or nil.
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

// A foresight is what is asked for beside a batch of entries, as they are
// expected to carry tags.
type foresight struct {
	b         *batcher
	expected  []*carried // by place in the batch; nil: none
	elsewhere lookup
}

// foresee adds the records that a batch is expected to need to the batch, and
// asks other nodes for theirs.
func (b *batcher) foresee(bt *batch) foresight {
	f := foresight{b: b, elsewhere: lookup{s: b.s}}
	for i, entry := range bt.entries.names {
		c := b.s.carried.of(entry)
		if c == nil {
			continue
		}
		if f.expected == nil {
			f.expected = make([]*carried, len(bt.entries.names))
		}
		f.expected[i] = c
		for _, name := range c.records {
			if n, err := b.s.topo.node(name); err == nil && n == b.n {
				bt.records.add(name)
			} else {
				f.elsewhere.add(name)
			}
		}
	}
	f.elsewhere.send()
	return f
}

// A tagCheck is what is left to be done for a batch when it has been answered.
type tagCheck struct {
	foresight
	bt      *batch
	results []readResult
	pending []pendingCheck
	done    chan struct{}
}

type pendingCheck struct {
	result  int
	records []string
}

// begin judges what can be judged by the batch's own answers, and returns the
// rest; nil: there is none.
func (f foresight) begin(bt *batch, results []readResult) *tagCheck {
	var check *tagCheck
	for i := range results {
		r := results[i].reading
		var c *carried
		if f.expected != nil {
			c = f.expected[i]
		}
		switch {
		case r == nil || !r.Found:
			continue
		case !r.tagged():
			if c != nil {
				f.b.s.carried.forget(c)
			}
			continue
		case c == nil || !slices.Equal(c.tags, r.Entry.Tags):
			c = &carried{bt.entries.names[i], r.Entry.Tags, f.b.s.recordNames(r.Entry.Tags)}
			f.b.s.carried.remember(c)
		}
		if bt.hasRecords(c.records) {
			results[i].judge(c.records, bt.record)
			continue
		}
		if check == nil {
			check = &tagCheck{foresight: f, bt: bt, results: results, done: make(chan struct{})}
		}
		results[i].checked = check
		check.pending = append(check.pending, pendingCheck{i, c.records})
	}
	return check
}

func (bt *batch) hasRecords(names []string) bool {
	for _, name := range names {
		if bt.records.place(name) < 0 {
			return false
		}
	}
	return true
}

// record is what the batch found; it has to hold the name.
func (bt *batch) record(name string) foundRecord { return bt.found[bt.records.place(name)] }

// finishLater does the rest in a goroutine of its own: the next batch need not
// wait for it.
func (c *tagCheck) finishLater() {
	if c == nil {
		return
	}
	if !c.b.s.spawn(c.finish) {
		c.settle(func(string) foundRecord { return foundRecord{err: ErrClosed} })
	}
}

func (c *tagCheck) finish() {
	ctx := c.b.s.ctx
	found := map[string]foundRecord{}
	c.elsewhere.await(ctx, found)
	rest := lookup{s: c.b.s}
	for _, p := range c.pending {
		for _, name := range p.records {
			if _, ok := found[name]; !ok && c.bt.records.place(name) < 0 {
				rest.add(name)
			}
		}
	}
	rest.send()
	rest.await(ctx, found)
	c.settle(func(name string) foundRecord {
		if f, ok := found[name]; ok {
			return f
		}
		return c.bt.record(name)
	})
}

func (c *tagCheck) settle(found func(string) foundRecord) {
	for _, p := range c.pending {
		c.results[p.result].judge(p.records, found)
	}
	close(c.done)
}

func (r *readResult) judge(records []string, found func(string) foundRecord) {
	if err := r.reading.judgeBy(records, found); err != nil {
		r.reading, r.err = nil, fmt.Errorf("the entry's tags: %w", err)
	}
}
