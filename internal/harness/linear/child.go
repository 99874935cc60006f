package linear

import (
	"errors"
	"io"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

// A Config names the client, store and guard of a child.
type Config struct {
	Store  cache.Options // without an Observer
	Policy guard.Policy  // without Codec, Observer and Errors

	// Breakable gives each child a line of its own to the server, which faults
	// can break. Carrying it all costs the parent something.
	Breakable bool
}

// opening is the first line a child reads; all others are Loads.
type opening struct {
	Config
	Addr string
}

const childName = "linear"

// Main runs a child and ends the process, if this process was started as one.
// Call it first thing in TestMain.
func Main() { spawn.Main(childName, runChild) }

type child struct {
	guard  *guard.Guard[string]
	tagged atomic.Bool   // values carry tags
	parent *spawn.Parent // is told records
}

// runChild returns when its input ends.
func runChild(parent *spawn.Parent) error {
	logging.Disable() // connections break all the time here
	var o opening
	if err := parent.Hear(&o); err != nil {
		return err
	}
	opts := &redis.Options{
		Addr: o.Addr,
		// Near RedisTimeout, as cache.Options advises.
		DialTimeout: 2 * o.Store.RedisTimeout, ReadTimeout: 2 * o.Store.RedisTimeout,
	}
	client := redis.NewClient(opts)
	store, err := cache.NewRedis(client, o.Store)
	if err != nil {
		return err
	}
	c := &child{parent: parent}

	if c.guard, err = guard.New(store, "linear", o.Policy, guard.TagsOf(c.tagsOf)); err != nil {
		return err
	}
	c.tell(Op{Kind: opened})
	for {
		var l Load
		err := parent.Hear(&l)
		if err == io.EOF {
			// A lease that can't be given back, as Redis is away, expires by itself.
			_ = c.guard.Close()
			_ = store.Close()
			return client.Close()
		}
		if err != nil {
			return errors.Join(err, client.Close())
		}
		c.run(&l)
		c.tell(Op{Kind: finished})
	}
}

// tell writes at once: the report outlives this process.
func (c *child) tell(o Op) { c.parent.TellRaw(o.record()) }

// tagName is the tag that the values of a key carry, and of some of its
// neighbours.
func tagName(key uint32) string { return "t" + strconv.FormatUint(uint64(key/keysOfATag), 10) }

// tagsOf are the tags of the values of a key, whether fetched or set.
func (c *child) tagsOf(key, _ string) []string {
	if !c.tagged.Load() {
		return nil
	}
	n, err := strconv.ParseUint(key, 10, 32)
	if err != nil {
		panic(err) // see keyName
	}
	return []string{tagName(uint32(n))}
}

// keysOfATag share a tag.
const keysOfATag = 3

func keyName(key uint32) string { return strconv.FormatUint(uint64(key), 10) }
