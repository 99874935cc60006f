package chaos_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/chaos"
)

// at is an instant of these histories, in milliseconds from their start. A stamp
// of zero means none, so the start is not it.
func at(ms int) chaos.Stamp { return chaos.Stamp(1000*time.Second) + chaos.Stamp(ms)*1e6 }

const key = "deleted-1"

// A plan is a history in which nothing is wrong until a test plants it: process 1
// fetched the key from 100 to 200.
func plan(plant func(*chaos.History)) *chaos.History {
	h := &chaos.History{
		Fetches: []chaos.Fetch{{Proc: 1, Key: key, Seq: 1, Start: at(100), End: at(200), Token: "t1", Leased: true}},
		Gets:    []chaos.Get{got(1, 90, 210, fetched(1, 1, 100))},
		Terms: chaos.Terms{
			Patience: time.Second, Reach: 50 * time.Millisecond, Late: 100 * time.Millisecond, Lease: time.Second, Fetch: 8 * time.Second, HardTTL: 5 * time.Second,
		},
		CalmUntil: at(50),
	}
	plant(h)
	return h
}

func fetched(proc int, seq uint64, ms int) *chaos.Origin {
	return &chaos.Origin{Key: key, Proc: proc, Seq: seq, At: at(ms), Caller: 7}
}

func set(proc int, seq uint64, ms int) *chaos.Origin {
	return &chaos.Origin{Key: key, Proc: proc, Seq: seq, At: at(ms), Set: true}
}

func got(proc, from, to int, o *chaos.Origin) chaos.Get {
	return chaos.Get{Proc: proc, Key: key, Caller: 7, Start: at(from), End: at(to), Deadline: at(from + 5000), Origin: o}
}

// reserved has process 3 get the value from its reserve after a Delete by a process.
func reserved(h *chaos.History, by int) {
	ch, g, o := changed("delete", 1, 300, 310), got(3, 311, 320, nil), *fetched(1, 1, 100)
	ch.Proc, ch.Key, g.Key, o.Key = by, "reserve-1", "reserve-1", "reserve-1"
	g.Origin, g.Source = &o, "reserve"
	h.Changes, h.Gets = append(h.Changes, ch), append(h.Gets, g)
}

func changed(op string, seq uint64, from, to int) chaos.Change {
	return chaos.Change{Proc: 2, Op: op, Key: key, Seq: seq, Start: at(from), End: at(to)}
}

func TestCheckFindsWrongValues(t *testing.T) {
	t.Parallel()
	old := fetched(1, 1, 100)
	tests := []struct {
		name  string
		wrong int
		plant func(*chaos.History)
	}{
		{"none", 0, func(*chaos.History) {}},
		{"older than a Delete that had returned", 1, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("delete", 1, 300, 310))
			h.Gets = append(h.Gets, got(3, 311, 320, old))
		}},
		{"older than a Delete long before a younger one that had not returned", 1, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("delete", 1, 300, 310), changed("delete", 2, 400, 500))
			h.Gets = append(h.Gets, got(3, 450, 460, old))
		}},
		{"older than a Delete that started before another and returned after it", 1, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("delete", 1, 300, 400), changed("delete", 2, 320, 350))
			h.Gets = append(h.Gets, got(3, 360, 370, fetched(1, 1, 310)))
		}},
		{"from the reserve, older than a Delete of another process", 0, func(h *chaos.History) {
			reserved(h, 2)
		}},
		{"from the reserve, older than a Delete of its own", 1, func(h *chaos.History) {
			reserved(h, 3)
		}},
		{"from the reserve, older than a Delete of its own that is queued", 1, func(h *chaos.History) {
			reserved(h, 3)
			h.Changes[0].Err = "queued"
		}},
		{"from the reserve, older than a Delete of its own that was refused", 0, func(h *chaos.History) {
			reserved(h, 3)
			h.Changes[0].Err = "unavailable"
		}},
		{"from the reserve, too old", 1, func(h *chaos.History) {
			reserved(h, 2)
			h.Gets[len(h.Gets)-1].Start, h.Gets[len(h.Gets)-1].End = at(15_101), at(15_102)
		}},
		{"called at the instant in which Delete returned", 0, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("delete", 1, 300, 310))
			h.Gets = append(h.Gets, got(3, 310, 320, old))
		}},
		{"fetch started at the instant in which Delete did", 0, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("delete", 1, 300, 310))
			h.Gets = append(h.Gets, got(3, 320, 330, fetched(1, 2, 300)))
		}},
		{"fetch started while Delete was under way", 0, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("delete", 1, 300, 310))
			h.Gets = append(h.Gets, got(3, 320, 330, fetched(1, 2, 305)))
		}},
		{"a Delete that failed", 0, func(h *chaos.History) {
			c := changed("delete", 1, 300, 310)
			c.Err = "unavailable"
			h.Changes = append(h.Changes, c)
			h.Gets = append(h.Gets, got(3, 311, 320, old))
		}},
		{"a Delete that was not heard of again", 0, func(h *chaos.History) {
			c := changed("delete", 1, 300, 310)
			c.End = 0
			h.Changes = append(h.Changes, c)
			h.Gets = append(h.Gets, got(3, 311, 320, old))
		}},
		{"a Delete of another key", 0, func(h *chaos.History) {
			c := changed("delete", 1, 300, 310)
			c.Key = "deleted-2"
			h.Changes = append(h.Changes, c)
			h.Gets = append(h.Gets, got(3, 311, 320, old))
		}},
		{"Expire is no barrier", 0, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("expire", 1, 300, 310))
			h.Gets = append(h.Gets, got(3, 311, 320, old))
		}},
		{"a fetched value that a Set replaced", 1, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("set", 1, 300, 310))
			h.Gets = append(h.Gets, got(3, 311, 320, old))
		}},
		{"what a Set stored", 0, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("set", 1, 300, 310))
			h.Gets = append(h.Gets, got(3, 311, 320, set(2, 1, 300)))
		}},
		{"a Set that another Set replaced", 1, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("set", 1, 300, 310), changed("set", 2, 320, 330))
			h.Gets = append(h.Gets, got(3, 331, 340, set(2, 1, 300)))
		}},
		{"a Set that was deleted", 1, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("set", 1, 300, 310), changed("delete", 2, 320, 330))
			h.Gets = append(h.Gets, got(3, 331, 340, set(2, 1, 300)))
		}},
		{"a Set beside another Set", 0, func(h *chaos.History) {
			h.Changes = append(h.Changes, changed("set", 1, 300, 325), changed("set", 2, 320, 330))
			h.Gets = append(h.Gets, got(3, 331, 340, set(2, 1, 300)))
		}},
		{"a Set that failed may be carried out later", 0, func(h *chaos.History) {
			c := changed("set", 1, 300, 310)
			c.Err = "unavailable"
			h.Changes = append(h.Changes, c, changed("delete", 2, 320, 330))
			h.Gets = append(h.Gets, got(3, 331, 340, set(2, 1, 300)))
		}},
		{"a value of another key", 1, func(h *chaos.History) {
			o := fetched(1, 1, 100)
			o.Key = "deleted-2"
			h.Gets = append(h.Gets, got(3, 311, 320, o))
		}},
		{"older than a DeleteTag of its tag", 1, func(h *chaos.History) {
			tagged(h, "tagged-half-1", 300, 311)
		}},
		{"older than a DeleteTag of its other tag", 1, func(h *chaos.History) {
			tagged(h, "tagged-third-2", 300, 311)
		}},
		{"older than a DeleteTag of another tag", 0, func(h *chaos.History) {
			tagged(h, "tagged-half-0", 300, 311)
		}},
		{"called at the instant in which DeleteTag returned", 0, func(h *chaos.History) {
			tagged(h, "tagged-half-1", 300, 310)
		}},
		{"fetched after a DeleteTag had begun", 0, func(h *chaos.History) {
			tagged(h, "tagged-half-1", 90, 311)
		}},
		{"from GetMany, neither value nor error", 1, func(h *chaos.History) {
			g := got(3, 311, 320, nil)
			g.Damage, g.Many = "neither", true
			h.Gets = append(h.Gets, g)
		}},
		{"a damaged value", 1, func(h *chaos.History) {
			g := got(3, 311, 320, nil)
			g.Damage = "torn"
			h.Gets = append(h.Gets, g)
		}},
		{"somebody's own private value", 0, func(h *chaos.History) { h.Gets = append(h.Gets, private(1, 7)) }},
		{"a private value of another caller", 1, func(h *chaos.History) { h.Gets = append(h.Gets, private(1, 8)) }},
		{"a private value of another process", 1, func(h *chaos.History) { h.Gets = append(h.Gets, private(2, 7)) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := chaos.Check(plan(test.plant))
			if v.Wrong != test.wrong || v.OK() != (test.wrong == 0) {
				t.Errorf("%d wrong values, OK %v; want %d; %q", v.Wrong, v.OK(), test.wrong, v.Findings)
			}
			if v.Faults[chaos.Calm].Wrong != test.wrong {
				t.Errorf("%d counted for the calm, want %d", v.Faults[chaos.Calm].Wrong, test.wrong)
			}
		})
	}
}

// private is a caller 7 in process 1 that got a value made elsewhere.
func private(proc int, caller uint64) chaos.Get {
	g := got(1, 311, 320, &chaos.Origin{Key: "private-1", Proc: proc, Caller: caller, At: at(312)})
	g.Key = "private-1"
	return g
}

// tagged is a DeleteTag that takes 10 ms, and a GetMany that was given a value
// fetched from 100 for the key tagged-5.
func tagged(h *chaos.History, tag string, deleted, asked int) {
	c := changed("delete_tag", 1, deleted, deleted+10)
	c.Key = tag
	o := fetched(1, 1, 100)
	o.Key = "tagged-5"
	g := got(3, asked, asked+10, o)
	g.Key, g.Many = o.Key, true
	h.Changes, h.Gets = append(h.Changes, c), append(h.Gets, g)
}

func TestCheckForgivesNothingToAnEviction(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"full_lru", "full_noeviction"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			v := chaos.Check(plan(func(h *chaos.History) {
				h.Faults = []chaos.Fault{{Name: fault, Start: at(20000), Repaired: at(21900), Until: at(22000)}}
				tagged(h, "tagged-half-1", 21000, 21100)
			}))
			if v.Wrong != 1 || v.LostInvalidations != 0 || v.TagsDeleted != 1 || v.ServedMany != 1 {
				t.Errorf("wrong %d, lost %d, %d tags deleted, %d served by GetMany: %q", v.Wrong, v.LostInvalidations, v.TagsDeleted, v.ServedMany, v.Findings)
			}
		})
	}
}

func TestCheckAllowsTheLossesOfAFailover(t *testing.T) {
	t.Parallel()
	// Roles change at 20000, within a fault that began at 10000.
	tests := []struct {
		name           string
		none           bool // no role has changed
		deleted, asked int
		wrong, lost    int
	}{
		{name: "a Delete just before the fault", deleted: 9500, asked: 21000, lost: 1},
		{name: "a Delete just before the failover", deleted: 19900, asked: 21000, lost: 1},
		{name: "a Delete after it", deleted: 24000, asked: 24500, lost: 1},
		{name: "a Delete long before the fault", deleted: 8000, asked: 21000, wrong: 1},
		{name: "a Delete long after the failover", deleted: 25001, asked: 25500, wrong: 1},
		{name: "the hard TTL has passed since", deleted: 19900, asked: 30001, wrong: 1},
		{name: "a fault without a failover", none: true, deleted: 19900, asked: 21000, wrong: 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := chaos.Check(plan(func(h *chaos.History) {
				h.Faults = []chaos.Fault{{Name: "master_kill", Start: at(10000), Repaired: at(21000), Until: at(22000)}}
				if !test.none {
					h.Failovers = []chaos.Stamp{at(20000)}
				}
				h.Changes = append(h.Changes, changed("delete", 1, test.deleted, test.deleted+10))
				h.Gets = append(h.Gets, got(3, test.asked, test.asked+10, fetched(1, 1, 100)))
			}))
			if v.Wrong != test.wrong || v.LostInvalidations != test.lost || v.StaleAfterLost != test.lost {
				t.Errorf("wrong %d, lost %d, served %d: %q", v.Wrong, v.LostInvalidations, v.StaleAfterLost, v.Findings)
			}
		})
	}
}

func TestCheckFindsStuckCallers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		stuck int
		get   chaos.Get
		pause chaos.Pause
	}{
		{"on time", 0, chaos.Get{End: at(1000)}, chaos.Pause{}},
		{"within its patience", 0, chaos.Get{End: at(2000)}, chaos.Pause{}},
		{"late", 1, chaos.Get{End: at(2001), Err: "deadline"}, chaos.Pause{}},
		{"still out", 1, chaos.Get{Seen: at(2500)}, chaos.Pause{}},
		{"frozen over its deadline, and back at once", 0, chaos.Get{End: at(5500)}, chaos.Pause{Proc: 1, From: at(500), To: at(5000)}},
		{"frozen after its deadline, and back at once", 0, chaos.Get{End: at(5500)}, chaos.Pause{Proc: 1, From: at(1500), To: at(5000)}},
		{"frozen over its deadline, and late", 1, chaos.Get{End: at(6001)}, chaos.Pause{Proc: 1, From: at(500), To: at(5000)}},
		{"frozen before its deadline", 1, chaos.Get{End: at(2001)}, chaos.Pause{Proc: 1, From: at(500), To: at(900)}},
		{"another process was frozen", 1, chaos.Get{End: at(5500)}, chaos.Pause{Proc: 2, From: at(500), To: at(5000)}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := chaos.Check(plan(func(h *chaos.History) {
				g := test.get
				g.Proc, g.Key, g.Start, g.Deadline = 1, key, at(0), at(1000)
				if g.Err == "" {
					g.Origin = fetched(1, 1, 100)
				}
				h.Gets = append(h.Gets, g)
				h.Pauses = []chaos.Pause{test.pause}
			}))
			if v.Stuck != test.stuck || v.OK() != (test.stuck == 0) {
				t.Errorf("%d stuck, want %d: %q", v.Stuck, test.stuck, v.Findings)
			}
		})
	}
}

func TestCheckFindsDuplicateFetches(t *testing.T) {
	t.Parallel()
	// Beside process 1's fetch from 100 to 200, another one of process 2.
	second := chaos.Fetch{Proc: 2, Key: key, Seq: 1, Start: at(150), End: at(250), Token: "t2", Leased: true}
	tests := []struct {
		name                         string
		duplicates, unexplained, not int // not: in the calm
		plant                        func(h *chaos.History, first, second *chaos.Fetch)
	}{
		{"overlapping", 1, 1, 0, func(*chaos.History, *chaos.Fetch, *chaos.Fetch) {}},
		{"one after the other", 0, 0, 0, func(_ *chaos.History, _, f *chaos.Fetch) { f.Start = at(200) }},
		{"of other keys", 0, 0, 0, func(_ *chaos.History, _, f *chaos.Fetch) { f.Key = "deleted-2" }},
		{"of a private key", 0, 0, 0, func(_ *chaos.History, r, f *chaos.Fetch) { r.Key, f.Key = "private-1", "private-1" }},
		{"a Delete in between", 0, 0, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Changes = append(h.Changes, changed("delete", 1, 120, 130))
		}},
		{"an Expire that began before the first", 0, 0, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Changes = append(h.Changes, changed("expire", 1, 80, 110))
		}},
		{"a Set that failed shortly before", 0, 0, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			c := changed("set", 1, 20, 40)
			c.Err = "unavailable"
			h.Changes = append(h.Changes, c)
		}},
		{"a Delete after both had begun", 1, 1, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Changes = append(h.Changes, changed("delete", 1, 160, 170))
		}},
		{"a Delete long before both", 1, 1, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Changes = append(h.Changes, changed("delete", 1, 20, 30))
		}},
		{"a Delete of another key", 1, 1, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			c := changed("delete", 1, 120, 130)
			c.Key = "deleted-2"
			h.Changes = append(h.Changes, c)
		}},
		{"without a lease", 1, 0, 0, func(_ *chaos.History, _, f *chaos.Fetch) { f.Leased = false }},
		{"taken over", 1, 0, 0, func(_ *chaos.History, _, f *chaos.Fetch) { f.TakenOver = true }},
		{"the first lost its lease", 1, 0, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Events = []chaos.Event{{Proc: 1, Kind: "fill_refused", Token: "t1"}}
		}},
		{"the second lost its lease", 1, 1, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Events = []chaos.Event{{Proc: 2, Kind: "lease_lost", Token: "t2"}}
		}},
		{"during a fault", 1, 0, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Faults = []chaos.Fault{{Name: "cut", Start: at(140), Until: at(145)}}
		}},
		{"before a fault", 1, 1, 0, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.Faults = []chaos.Fault{{Name: "cut", Start: at(151), Until: at(160)}}
		}},
		{"without a lease, while nothing was broken", 1, 0, 1, func(h *chaos.History, _, f *chaos.Fetch) {
			f.Leased = false
			h.CalmUntil = at(500)
		}},
		{"without a lease, while the machine was too busy", 1, 0, 0, func(h *chaos.History, _, f *chaos.Fetch) {
			f.Leased = false
			h.CalmUntil = at(500)
			h.Pauses = []chaos.Pause{{Proc: 3, From: at(-1000), To: at(-500)}}
		}},
		{"with a lease, while the machine was too busy", 1, 1, 1, func(h *chaos.History, _, _ *chaos.Fetch) {
			h.CalmUntil = at(500)
			h.Pauses = []chaos.Pause{{Proc: 3, From: at(-1000), To: at(-500)}}
		}},
		{"the first ended with its process", 0, 0, 0, func(h *chaos.History, r, _ *chaos.Fetch) {
			r.End = 0
			h.Lives = []chaos.Life{{Proc: 1, End: at(140)}}
		}},
		{"the first never ended", 1, 1, 0, func(_ *chaos.History, r, f *chaos.Fetch) {
			r.End = 0
			f.Start, f.End = at(8000), at(8100)
		}},
		{"the first never ended, and its time was over", 1, 0, 0, func(_ *chaos.History, r, f *chaos.Fetch) {
			r.End = 0
			f.Start, f.End = at(8100), at(8200)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := chaos.Check(plan(func(h *chaos.History) {
				h.Fetches = append(h.Fetches, second)
				test.plant(h, &h.Fetches[0], &h.Fetches[1])
			}))
			if v.Duplicates != test.duplicates || v.Unexplained != test.unexplained || v.Calm != test.not {
				t.Errorf("%d duplicates, %d unexplained, %d in the calm: %q", v.Duplicates, v.Unexplained, v.Calm, v.Findings)
			}
			if v.OK() != (test.unexplained == 0 && test.not == 0) {
				t.Errorf("OK is %v", v.OK())
			}
		})
	}
}

func TestCheckFindsLeakedGoroutines(t *testing.T) {
	t.Parallel()
	v := chaos.Check(plan(func(h *chaos.History) {
		h.Lives = []chaos.Life{
			{Proc: 1, Before: &chaos.Idle{Goroutines: 20, Heap: 1000}, After: &chaos.Idle{Goroutines: 22, Heap: 3000}},
			{Proc: 2, Before: &chaos.Idle{Goroutines: 20}, After: &chaos.Idle{Goroutines: 19}},
			{Proc: 3, Before: &chaos.Idle{Goroutines: 20}, End: at(300)},
		}
	}))
	if v.LeakedGoroutines != 2 || v.OK() {
		t.Errorf("%d leaked, OK %v; want 2", v.LeakedGoroutines, v.OK())
	}
	if v.HeapGrowth[1] != 2000 {
		t.Errorf("heap grew by %d, want 2000", v.HeapGrowth[1])
	}
}

func TestCheckCountsByFault(t *testing.T) {
	t.Parallel()
	v := chaos.Check(plan(func(h *chaos.History) {
		h.Faults = []chaos.Fault{
			{Name: "cut", Start: at(2000), Until: at(3000)},
			{Name: "kill", Start: at(500), Until: at(1000)},
			{Name: "cut", Start: at(4000), Until: at(5000)},
		}
		failed := got(1, 600, 700, nil)
		failed.Err = "unavailable"
		h.Gets = append(h.Gets, failed, got(1, 2500, 2540, fetched(1, 1, 100)), got(1, 4500, 4600, fetched(1, 1, 100)), got(1, 3500, 3501, fetched(1, 1, 100)))
		h.Events = []chaos.Event{{Kind: "unguarded"}, {Kind: "unguarded"}, {Kind: "subscription_lost"}}
	}))
	cut, kill, calm := v.Faults["cut"], v.Faults["kill"], v.Faults[chaos.Calm]
	if cut.Times != 2 || cut.Served != 2 || cut.WorstMS != 100 {
		t.Errorf("cut: %+v", cut)
	}
	if kill.Times != 1 || kill.Served != 0 || kill.Errors["unavailable"] != 1 {
		t.Errorf("kill: %+v", kill)
	}
	if calm.Served != 2 || v.Served != 4 || v.Errors["unavailable"] != 1 {
		t.Errorf("calm %+v, served %d, errors %v", calm, v.Served, v.Errors)
	}
	if v.LostLeases != 2 || v.Events["subscription_lost"] != 1 {
		t.Errorf("lost leases %d, events %v", v.LostLeases, v.Events)
	}
	if names := strings.Join(v.FaultNames(), ","); names != "calm,cut,kill" {
		t.Errorf("names %s", names)
	}
}
