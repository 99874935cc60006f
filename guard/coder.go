package guard

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// A coder turns values of a guard's type into payloads and back. Values travel
// through the engine as *V in an any. A value may share the payload's memory, as
// both are read-only (see [Policy.Clone]).
type coder interface {
	// encode's payload is only to be read: it may be the value itself.
	encode(value any) (payload []byte, err error)
	decode(payload []byte) (any, error)
	// many is decode for values that are copied at once: they share memory, a few at
	// a time, or a place where nothing can tell.
	many() func(payload []byte) (any, error)
}

type coderOf[V any] struct{ codec cache.Codec }

func (c coderOf[V]) encode(value any) ([]byte, error) {
	v, ok := value.(*V)
	if !ok {
		return nil, fmt.Errorf("guard: a value of type %T in a guard of another type", value)
	}
	if _, raw := c.codec.(cache.Raw); raw {
		switch v := any(v).(type) {
		case *string:
			return unsafe.Slice(unsafe.StringData(*v), len(*v)), nil
		case *[]byte:
			return *v, nil
		}
	}
	return c.codec.Marshal(*v)
}

func (c coderOf[V]) decode(payload []byte) (any, error) {
	v := new(V)
	if err := c.into(v, payload); err != nil {
		return nil, err
	}
	return v, nil
}

func (c coderOf[V]) many() func([]byte) (any, error) {
	var place *V
	if c.raw() {
		place = new(V)
	}
	var slab []V
	return func(payload []byte) (any, error) {
		v := place
		if v == nil { // it may hold its own address
			if len(slab) == 0 {
				slab = make([]V, 64)
			}
			v, slab = &slab[0], slab[1:] // after an error too: there may be anything in it
		}
		if err := c.into(v, payload); err != nil {
			return nil, err
		}
		return v, nil
	}
}

// raw reports whether values are bytes as they are stored.
func (c coderOf[V]) raw() bool {
	if _, raw := c.codec.(cache.Raw); !raw {
		return false
	}
	switch any(*new(V)).(type) {
	case string, []byte:
		return true
	}
	return false
}

// into decodes. Bytes as they are stored need no copy.
func (c coderOf[V]) into(v *V, payload []byte) error {
	if _, raw := c.codec.(cache.Raw); raw {
		switch v := any(v).(type) {
		case *string:
			*v = unsafe.String(unsafe.SliceData(payload), len(payload))
			return nil
		case *[]byte:
			*v = slices.Clip(payload)
			return nil
		}
	}
	return c.codec.Unmarshal(payload, v)
}

// A packer makes entries of values and values of entries.
type packer struct {
	coder  coder
	codec  cache.Codec
	policy *Policy
	events *reporter
}

// pack makes the entry of a value.
func (p *packer) pack(entry *store.Entry, value any) error {
	payload, err := p.encode(value)
	if err != nil {
		return err
	}
	*entry = store.Entry{Kind: store.Value, Codec: p.codec.ID(), Payload: payload}
	if len(payload) <= p.policy.MaxBytes && p.policy.CompressAbove > 0 && len(payload) > p.policy.CompressAbove {
		if packed := compress(payload); len(packed) < len(payload) {
			entry.Payload = packed
			entry.Flags |= store.FlagCompressed
		}
	}
	return nil
}

// encode turns a codec's panic into an error: it may be the user's.
func (p *packer) encode(value any) (payload []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("guard: the codec panicked on a value to encode: %v", v)
		}
	}()
	if payload, err = p.coder.encode(value); err != nil {
		return nil, fmt.Errorf("guard: the value can't be encoded: %w", err)
	}
	return payload, nil
}

// unpack returns the value that was read, decoded once for all callers that share the
// read. A value that can't be decoded is reported once, too.
func (p *packer) unpack(ctx context.Context, key string, rd *read) (any, error) {
	rd.decoding.Do(func() {
		if rd.value, rd.damage = p.decode(rd.reading, p.coder.decode); rd.damage != nil {
			p.damaged(ctx, key, rd.reading, rd.damage)
		}
	})
	return rd.value, rd.damage
}

// decode is unpack without its memory, by one of the coder's ways.
func (p *packer) decode(r *store.Reading, decode func([]byte) (any, error)) (value any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: the codec panicked: %v", store.ErrDamaged, v)
		}
	}()
	payload := r.Entry.Payload
	if r.Entry.Codec != p.codec.ID() {
		return nil, fmt.Errorf("%w: the entry's codec is %d, this guard's is %d", store.ErrDamaged, r.Entry.Codec, p.codec.ID())
	}
	if r.Entry.Flags&store.FlagCompressed != 0 {
		if payload, err = decompress(payload, p.policy.MaxBytes); err != nil {
			return nil, err
		}
	}
	return decode(payload)
}

// damaged reports an entry that can't be read.
func (p *packer) damaged(ctx context.Context, key string, r *store.Reading, err error) {
	p.events.report(ctx, cache.EntryDamaged, cache.Event{Key: key, Token: cache.Token(r.Entry.Version), Err: err})
}
