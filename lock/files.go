package lock

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Files keeps locks in a directory, for the processes of one machine. The directory is made
// if need be. It must lie on a local file system: the locks of network file systems are not
// dependable. Waiters poll, and a dead holder is noticed at once: the kernel tells. Of each
// name two small files stay, with its fence. It needs a system with flock (Linux, macOS, BSD).
func Files(dir string) (Backend, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("lock: Files: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock: Files: %w", err)
	}
	var process [8]byte
	rand.Read(process[:]) // never fails (crypto/rand since Go 1.24)
	b := &files{dir: dir, process: hex.EncodeToString(process[:])}
	// The kernel gives this file's lock up when the process dies. It gets its name once it is
	// locked: another process would take it for that of a dead one before.
	b.alive, err = os.OpenFile(filepath.Join(dir, "new-"+b.process), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: Files: %w", err)
	}
	free, err := tryFlock(b.alive)
	if err == nil && free {
		err = os.Rename(b.alive.Name(), b.alivePath(b.process))
	}
	if err != nil || !free {
		return nil, errors.Join(fmt.Errorf("lock: Files: %s can't be locked: %w", dir, err), b.alive.Close(), os.Remove(b.alive.Name()))
	}
	b.sweep()
	return b, nil
}

// sweep removes the files of dead processes. A process without a file is dead, too.
func (b *files) sweep() {
	all, _ := os.ReadDir(b.dir)
	for _, f := range all {
		if process, ok := strings.CutPrefix(f.Name(), "process-"); ok && b.isDead(process) {
			_ = os.Remove(b.alivePath(process))
		}
	}
}

// files is a directory. A lock is a record, which is replaced by renaming, under the flock of
// a file beside it. The flock is held for a few system calls.
type files struct {
	dir     string
	process string
	alive   *os.File // locked for as long as the process lives
}

func (b *files) String() string { return b.dir }

func (b *files) alivePath(process string) string { return filepath.Join(b.dir, "process-"+process) }

// A record is the content of a lock's file.
type record struct {
	Name    string        `json:"name"` // quoted by %q, for people; any bytes are a name
	Fence   uint64        `json:"fence"`
	Attempt int           `json:"attempt"` // grants since the last release
	Holders []placeRecord `json:"holders"`
}

type placeRecord struct {
	ID      string `json:"id"`
	Process string `json:"process"`
	Ends    int64  `json:"ends"` // Unix time in milliseconds: all processes have the same clock
}

// parseRecord reads a file. An empty one is a lock that no process has held.
func parseRecord(b []byte) (record, error) {
	var r record
	if len(b) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, err
	}
	for _, h := range r.Holders {
		if _, err := ParseID(h.ID); err != nil {
			return record{}, err
		}
		if p, err := hex.DecodeString(h.Process); err != nil || len(p) != 8 {
			return record{}, fmt.Errorf("the process %q is not 16 hexadecimal digits", cut(h.Process))
		}
	}
	return r, nil
}

// flockPoll is the time between two looks at a flock that another process has.
const flockPoll = time.Millisecond

// with calls change with the record, without expired holders, while no other process can
// change it. The record is stored if change answers true.
func (b *files) with(ctx context.Context, name string, change func(r *record, now int64) bool) error {
	sum := sha256.Sum256([]byte(name))
	path := filepath.Join(b.dir, hex.EncodeToString(sum[:]))
	guard, err := os.OpenFile(path+".flock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer func() { _ = guard.Close() }() // which gives the flock up
	for {
		free, err := tryFlock(guard)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if free {
			break
		}
		if err := sleep(ctx, flockPoll); err != nil {
			return fmt.Errorf("%w: another process works on %s: %w", ErrUnavailable, path, err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	r, err := parseRecord(text)
	if err != nil {
		return fmt.Errorf("%w: %s (delete it, or give the lock another name): %w", ErrForeign, path, err)
	}
	now := time.Now().UnixMilli()
	held := r.Holders[:0]
	for _, h := range r.Holders {
		if h.Ends > now {
			held = append(held, h)
		}
	}
	r.Holders, r.Name = held, fmt.Sprintf("%q", cut(name))
	if !change(&r, now) {
		return nil
	}
	text, err = json.Marshal(&r)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// isDead reports whether the process of a holder has ended.
func (b *files) isDead(process string) bool {
	if process == b.process {
		return false
	}
	f, err := os.Open(b.alivePath(process))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	free, err := tryFlock(f)
	return err == nil && free
}

// Acquire implements [Backend].
func (b *files) Acquire(ctx context.Context, r Request) (g Grant, err error) {
	err = b.with(ctx, r.Name, func(rec *record, now int64) bool {
		if len(rec.Holders) >= r.Holders {
			b.refuse(&g, rec, &r, now)
			if len(rec.Holders) >= r.Holders {
				return false
			}
			g = Grant{TakenOver: true}
		}
		// A file that was removed starts anew above each fence that it has held.
		if rec.Fence == 0 {
			rec.Fence = uint64(max(0, now)) * 1000
		}
		rec.Fence++
		rec.Attempt++
		rec.Holders = append(rec.Holders, placeRecord{r.ID.String(), b.process, now + r.TTL.Milliseconds()})
		g.OK, g.Fence = true, rec.Fence
		if r.Holders == 1 {
			g.Attempt = rec.Attempt
		}
		return true
	})
	g.Server = b.dir
	return g, err
}

// refuse names the holder of the lock, or removes the suspect if it is dead.
func (b *files) refuse(g *Grant, rec *record, r *Request, now int64) {
	for i, h := range rec.Holders {
		id, _ := ParseID(h.ID)
		left, dead := time.Duration(h.Ends-now)*time.Millisecond, b.isDead(h.Process)
		if dead && id == r.Suspect {
			rec.Holders = append(rec.Holders[:i], rec.Holders[i+1:]...)
			_ = os.Remove(b.alivePath(h.Process))
			return
		}
		if i == 0 || dead && !g.Dead || dead == g.Dead && left < g.Left {
			g.Holder, g.Left, g.Dead = id, left, dead
		}
	}
}

// Extend implements [Backend].
func (b *files) Extend(ctx context.Context, h Hold) (ok bool, err error) {
	err = b.with(ctx, h.Name, func(rec *record, now int64) bool {
		if i := rec.find(h.ID); i >= 0 {
			ok = true
			rec.Holders[i].Ends = max(rec.Holders[i].Ends, now+h.TTL.Milliseconds())
			rec.Fence = max(rec.Fence, h.Fence)
		}
		return ok
	})
	return ok, err
}

// Release implements [Backend].
func (b *files) Release(ctx context.Context, h Hold) (ok bool, err error) {
	err = b.with(ctx, h.Name, func(rec *record, _ int64) bool {
		if i := rec.find(h.ID); i >= 0 {
			ok = true
			rec.Holders = append(rec.Holders[:i], rec.Holders[i+1:]...)
			rec.Attempt = 0
		}
		return ok
	})
	return ok, err
}

func (r *record) find(id ID) int {
	for i, h := range r.Holders {
		if h.ID == id.String() {
			return i
		}
	}
	return -1
}

// Inspect implements [Backend].
func (b *files) Inspect(ctx context.Context, name string, _ int) (s State, err error) {
	err = b.with(ctx, name, func(rec *record, now int64) bool {
		s.Fence = rec.Fence
		for _, h := range rec.Holders {
			id, _ := ParseID(h.ID)
			s.Holders = append(s.Holders, Holder{ID: id, Left: time.Duration(h.Ends-now) * time.Millisecond, Dead: b.isDead(h.Process)})
		}
		return false
	})
	return s, err
}

// Watch implements [Backend]: waiters poll.
func (b *files) Watch(string) (<-chan struct{}, func()) { return nil, func() {} }
