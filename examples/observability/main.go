// Command observability starts two processes under load on one Redis, to be looked at:
// metrics for Prometheus, traces, and the debug page.
//
//	go run .
//	go run . -scenario redis
//
// Scenarios: normal; origin (slow, failing, and asked too often); redis (killed); holder
// (processes die while they fetch); tour (each in turn).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// Scenarios of the load.
const (
	normal  = "normal"
	failing = "origin"
	noRedis = "redis"
	dying   = "holder"
	tour    = "tour"
)

func main() {
	logging.Disable() // the outages are meant, and shown elsewhere
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			log.Fatal(err)
		}
		return
	}
	scenario := flag.String("scenario", normal, "normal, origin, redis, holder or tour")
	each := flag.Duration("each", 2*time.Minute, "time for each scenario of the tour")
	otlp := flag.String("otlp", "", "URL of an OTLP/HTTP receiver for the traces, such as http://localhost:4318")
	ports := flag.String("ports", "9464,9465", "ports of the two processes, or 0,0 for free ones")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *scenario, *each, *otlp, *ports); err != nil {
		log.Fatal(err)
	}
}

// run ends with ctx.
func run(ctx context.Context, scenario string, each time.Duration, otlp, ports string) error {
	if !slices.Contains([]string{normal, failing, noRedis, dying, tour}, scenario) {
		return fmt.Errorf("-scenario is %q, must be normal, origin, redis, holder or tour", scenario)
	}
	var first, second int
	if _, err := fmt.Sscanf(ports, "%d,%d", &first, &second); err != nil {
		return fmt.Errorf("-ports is %q, must be two numbers: %w", ports, err)
	}
	server, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer server.stop()
	f := &fleet{redis: server.addr, otlp: otlp, links: newLinks(os.Stdout), scenario: normal}
	for i, port := range []int{first, second} {
		addr, err := freeAddress(port)
		if err != nil {
			return err
		}
		f.members = append(f.members, &member{number: i + 1, addr: addr})
	}
	defer f.stop()
	for _, m := range f.members {
		if err := f.start(m); err != nil {
			return err
		}
		fmt.Printf("process %d: http://%s/debug/stampede and http://%s/metrics\n", m.number, m.addr, m.addr)
	}
	if server.embedded {
		fmt.Println("Redis: embedded, as redis-server is not installed")
	} else {
		fmt.Printf("Redis: redis-server at %s\n", server.addr)
	}
	go f.keepAlive(ctx)
	go commands(f, server) // ends with the program
	play := func(name string) error {
		fmt.Println("scenario:", name)
		return errors.Join(server.set(ctx, name != noRedis), f.set(name))
	}
	if scenario != tour {
		if err := play(scenario); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	for {
		for _, name := range []string{normal, failing, noRedis, dying} {
			if err := play(name); err != nil {
				return err
			}
			select {
			case <-time.After(each):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// commands reads scenarios from standard input, a name in JSON on each line, and plays
// them. It lets a program change the scenario.
func commands(f *fleet, server *redisServer) {
	in := json.NewDecoder(os.Stdin)
	for {
		var name string
		if in.Decode(&name) != nil {
			return
		}
		if err := errors.Join(server.set(context.Background(), name != noRedis), f.set(name)); err != nil {
			log.Print(err)
		}
		fmt.Println("scenario:", name)
	}
}

func freeAddress(port int) (string, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}
