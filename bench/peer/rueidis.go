package peer

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidisaside"
)

// The limit of reads over rueidis: its pipelined Do.
func rueidisDo() System {
	return System{
		Name: "GET (rueidis)", Module: "github.com/redis/rueidis", Limit: true,
		Link: "https://github.com/redis/rueidis#auto-pipelining",
		Note: "a bare GET by `Do`, which pipelines by itself: never fetches, shares nothing",
		Open: func(o Options) (Cache, error) {
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{o.Addr}})
			if err != nil {
				return nil, err
			}
			return &bareDo{c, o}, nil
		},
	}
}

type bareDo struct {
	client rueidis.Client
	o      Options
}

func (c *bareDo) Fill(ctx context.Context, key, value string) error {
	return c.client.Do(ctx, c.client.B().Set().Key(key).Value(value).Px(c.o.TTL).Build()).Error()
}

func (c *bareDo) Get(ctx context.Context, key string, _ Fetch) (string, error) {
	return c.client.Do(ctx, c.client.B().Get().Key(key).Build()).ToString()
}

func (c *bareDo) Delete(ctx context.Context, key string) error {
	return c.client.Do(ctx, c.client.B().Del().Key(key).Build()).Error()
}

func (c *bareDo) Close() { c.client.Close() }

func rueidisAside() System {
	return System{
		Name: "rueidisaside", Module: "github.com/redis/rueidis/rueidisaside", Near: true, Fleet: true,
		Link: "https://github.com/redis/rueidis/tree/main/rueidisaside#example",
		Note: "hits come from rueidis's client-side cache, of 128 MiB for each connection by default, which 10,000 keys of 64 KiB don't all fit in; v1.0.77 deadlocks when all keys are flushed: its handler of that message sends a command on the connection, and runs on the reader of that connection",
		Open: func(o Options) (Cache, error) {
			c, err := rueidisaside.NewClient(rueidisaside.ClientOption{
				ClientOption: rueidis.ClientOption{InitAddress: []string{o.Addr}},
			})
			if err != nil {
				return nil, err
			}
			return &asideCache{c, o}, nil
		},
	}
}

type asideCache struct {
	client rueidisaside.CacheAsideClient
	o      Options
}

func (c *asideCache) Get(ctx context.Context, key string, fetch Fetch) (string, error) {
	return c.client.Get(ctx, c.o.TTL, key, func(ctx context.Context, _ string) (string, error) { return fetch(ctx) })
}

func (c *asideCache) Delete(ctx context.Context, key string) error { return c.client.Del(ctx, key) }
func (c *asideCache) Close()                                       { c.client.Close() }
