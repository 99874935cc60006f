package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// healAfter is how long Heal leaves a disagreement to the nodes themselves.
// Their gossip and the end of a failover take less.
const healAfter = 2 * time.Second

// Heal waits until all nodes agree on one running owner for each slot, and until
// no slot is being moved. It completes a move that was interrupted. If a failover
// has ended one side of the move, Heal undoes it: the slot stays with its owner,
// and keys of the slot at other masters are dropped. A slot that no master owns is
// given to a master, as happens when a master dies before its replica has learned
// of a slot.
//
// All nodes must run. Heal repeats a repair that did not succeed at once until the
// context ends.
func (c *Cluster) Heal(ctx context.Context) error {
	var last error
	begun := time.Now()
	err := poll(ctx, func() (bool, error) {
		var views []*view
		if views, last = c.views(ctx, true); last != nil {
			return false, nil
		}
		wrong := disagreements(views)
		if len(wrong) == 0 {
			return true, nil
		}
		last = disagreeErr(wrong)
		settling := slices.ContainsFunc(wrong, func(d disagreement) bool { return !d.open })
		if settling && time.Since(begun) < healAfter {
			return false, nil
		}
		begun = time.Now() // the repair is given its time, too
		last = errors.Join(last, c.repair(ctx, views, wrong))
		return false, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// agree waits until all running nodes name the same owner for each slot. A node
// believes an owner's claim only if the owner's epoch is greater than that of the
// owner before. Moves in quick succession can leave it lower. A replica then never
// learns of the slot, and would lose it in a failover. So an owner that is not
// believed is given a greater epoch.
func (c *Cluster) agree(ctx context.Context) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		var views []*view
		if views, last = c.views(ctx, false); last != nil {
			return false, nil
		}
		wrong := disagreements(views)
		wrong = slices.DeleteFunc(wrong, func(d disagreement) bool { return d.owner == nil || !d.unknown })
		if len(wrong) == 0 {
			return true, nil
		}
		last = errors.Join(disagreeErr(wrong), c.raise(ctx, wrong))
		return false, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func disagreeErr(wrong []disagreement) error {
	d := wrong[0]
	owner := "no node"
	if d.owner != nil {
		owner = d.owner.server.Addr()
	}
	return fmt.Errorf("redistest: %d slots are not settled, slot %d of %s among them (open %v, unknown to a node %v)", len(wrong), d.slot, owner, d.open, d.unknown)
}

// repair tries to settle slots, once.
func (c *Cluster) repair(ctx context.Context, views []*view, wrong []disagreement) error {
	for i := range wrong {
		d := &wrong[i]
		var err error
		switch {
		case d.open:
			err = closeSlot(ctx, views, d)
		case d.owner == nil:
			d.owner = views[slices.IndexFunc(views, func(v *view) bool { return v.master })]
			err = assign(ctx, views, d.slot, d.owner)
		}
		if err != nil {
			return err
		}
	}
	return c.raise(ctx, wrong)
}

// closeSlot completes the move of a slot if both ends know of it, or undoes it.
func closeSlot(ctx context.Context, views []*view, d *disagreement) error {
	var to *view
	if d.owner != nil {
		to = byID(views, d.owner.migrating[d.slot])
	}
	if to != nil && to.master && to.importing[d.slot] == d.owner.id {
		if err := moveKeys(ctx, d.slot, d.owner.server, to.server); err != nil {
			return err
		}
		d.owner = to
	}
	if d.owner == nil {
		d.owner = views[slices.IndexFunc(views, func(v *view) bool { return v.master })]
	}
	for _, v := range views {
		if v.master && v != d.owner {
			if err := dropKeys(ctx, d.slot, v.server, d.owner.id); err != nil {
				return err
			}
		}
	}
	return assign(ctx, views, d.slot, d.owner)
}

// assign names a slot's owner to all masters, the owner first: it may not learn
// it from any other node.
func assign(ctx context.Context, views []*view, slot int, owner *view) error {
	masters := []*view{owner}
	for _, v := range views {
		if v.master && v != owner {
			masters = append(masters, v)
		}
	}
	for _, v := range masters {
		err := setSlot(ctx, slot, v.server, "STABLE", "")
		if err == nil {
			err = setSlot(ctx, slot, v.server, "NODE", owner.id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dropKeys removes the keys of a slot from a master that does not own it.
func dropKeys(ctx context.Context, slot int, s *Server, owner string) error {
	control := s.control()
	defer control.Close()
	keys, err := control.ClusterGetKeysInSlot(ctx, slot, 1<<20).Result()
	if err != nil || len(keys) == 0 {
		return err
	}
	// The master carries out commands for the keys only while it imports the slot
	// from an owner that it knows.
	for _, how := range []string{"NODE", "IMPORTING"} {
		if err := setSlot(ctx, slot, s, how, owner); err != nil {
			return err
		}
	}
	_, err = control.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.Do(ctx, "ASKING")
			p.Del(ctx, key)
		}
		return nil
	})
	return err
}

// setSlot is CLUSTER SETSLOT at one node.
func setSlot(ctx context.Context, slot int, at *Server, how, id string) error {
	args := []any{"CLUSTER", "SETSLOT", slot, how}
	if how != "STABLE" {
		args = append(args, id)
	}
	if _, err := at.do(ctx, args...); err != nil {
		return fmt.Errorf("redistest: slot %d %s at %s: %w", slot, how, at.Addr(), err)
	}
	return nil
}

// raise gives the owners of slots a greater epoch than all that are known.
func (c *Cluster) raise(ctx context.Context, wrong []disagreement) error {
	done := map[*Server]bool{}
	for _, d := range wrong {
		if s := d.owner.server; !done[s] {
			done[s] = true
			if _, err := s.do(ctx, "CLUSTER", "BUMPEPOCH"); err != nil {
				return fmt.Errorf("redistest: raise the epoch of %s: %w", s.Addr(), err)
			}
		}
	}
	return nil
}
