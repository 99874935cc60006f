package chaos

import "time"

// The parent writes orders, one JSON object a line; a child answers each with a
// report of the same name, and writes all other reports as things happen.

// An order to a child.
type order struct {
	Op     string  `json:"op"` // open, load, idle, close
	Config *config `json:"config,omitempty"`
}

// A config names the client, store and guards of a child.
type config struct {
	Proc         int               `json:"proc"`
	Topology     string            `json:"topology"`
	Addrs        []string          `json:"addrs"`   // as the servers know them
	Proxies      map[string]string `json:"proxies"` // and where they are dialled
	Master       string            `json:"master"`  // the sentinels' name of it
	Seed         uint64            `json:"seed"`
	Rate         float64           `json:"rate"` // callers in a second
	RedisTimeout time.Duration     `json:"redis_timeout"`
}

// A report of a child; one of its fields is set.
type report struct {
	Done    string  `json:"done,omitempty"` // an order, and its result
	Err     string  `json:"err,omitempty"`
	Idle    *Idle   `json:"idle,omitempty"`
	Get     *Get    `json:"get,omitempty"`
	Overdue *Get    `json:"overdue,omitempty"` // has not returned
	Begin   *Fetch  `json:"begin,omitempty"`
	End     *Fetch  `json:"end,omitempty"`
	Try     *Change `json:"try,omitempty"`
	Change  *Change `json:"change,omitempty"`
	Event   *Event  `json:"event,omitempty"`
	Late    *Pause  `json:"late,omitempty"` // the process noticed that it had not run
	Odd     string  `json:"odd,omitempty"`  // an error of no known kind
}
