package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A view is one node's table of the cluster's slots.
type view struct {
	server *Server
	id     string
	master bool
	epoch  int64

	owners               [clusterSlots]string // ids; empty: none
	migrating, importing map[int]string       // slots on the move: the other node's id
}

// views asks all nodes that run. With whole set it is an error if one does not.
func (c *Cluster) views(ctx context.Context, whole bool) ([]*view, error) {
	var all []*view
	for _, s := range c.nodes() {
		if !s.proc.alive() {
			if whole {
				return nil, fmt.Errorf("redistest: %s does not run", s.Addr())
			}
			continue
		}
		text, err := s.do(ctx, "CLUSTER", "NODES")
		if err != nil {
			return nil, fmt.Errorf("redistest: nodes that %s knows: %w", s.Addr(), err)
		}
		v := &view{server: s, migrating: map[int]string{}, importing: map[int]string{}}
		for line := range strings.Lines(fmt.Sprint(text)) {
			if err := v.add(strings.Fields(line)); err != nil {
				return nil, err
			}
		}
		all = append(all, v)
	}
	return all, nil
}

// add takes in one line of CLUSTER NODES: id, address, flags, master, ping, pong,
// epoch, link, and the slots, see https://redis.io/docs/latest/commands/cluster-nodes/.
func (v *view) add(fields []string) error {
	if len(fields) < 8 {
		return nil
	}
	flags := strings.Split(fields[2], ",")
	own := slices.Contains(flags, "myself")
	if own {
		v.id, v.master = fields[0], slices.Contains(flags, "master")
		var err error
		if v.epoch, err = strconv.ParseInt(fields[6], 10, 64); err != nil {
			return fmt.Errorf("redistest: epoch of %s: %w", v.server.Addr(), err)
		}
	}
	for _, slots := range fields[8:] {
		if inner, open := strings.CutPrefix(slots, "["); open {
			if err := v.addOpen(strings.TrimSuffix(inner, "]")); err != nil {
				return err
			}
			continue
		}
		first, last, isRange := strings.Cut(slots, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || from < 0 || to >= clusterSlots {
			return fmt.Errorf("redistest: %s names the slots %q", v.server.Addr(), slots)
		}
		for i := from; i <= to; i++ {
			v.owners[i] = fields[0]
		}
	}
	return nil
}

// addOpen takes in a slot on the move: 93->-id, or 77-<-id.
func (v *view) addOpen(text string) error {
	moves := v.migrating
	slot, id, ok := strings.Cut(text, "->-")
	if !ok {
		moves = v.importing
		slot, id, ok = strings.Cut(text, "-<-")
	}
	n, err := strconv.Atoi(slot)
	if !ok || err != nil {
		return fmt.Errorf("redistest: %s names the open slot %q", v.server.Addr(), text)
	}
	moves[n] = id
	return nil
}

func byID(views []*view, id string) *view {
	i := slices.IndexFunc(views, func(v *view) bool { return v.id == id })
	if id == "" || i < 0 {
		return nil
	}
	return views[i]
}

// A disagreement is a slot that is not settled.
type disagreement struct {
	slot    int
	owner   *view // the master that claims it, by the greatest epoch; nil: none
	open    bool  // it is being moved
	unknown bool  // some node names another owner, or none
}

// disagreements lists the slots that are not settled.
func disagreements(views []*view) []disagreement {
	var all []disagreement
	for slot := range clusterSlots {
		d := disagreement{slot: slot}
		for _, v := range views {
			if v.master && v.owners[slot] == v.id && (d.owner == nil || v.epoch > d.owner.epoch) {
				d.owner = v
			}
		}
		for _, v := range views {
			d.open = d.open || v.migrating[slot] != "" || v.importing[slot] != ""
			d.unknown = d.unknown || d.owner == nil || v.owners[slot] != d.owner.id
		}
		if d.open || d.unknown {
			all = append(all, d)
		}
	}
	return all
}
