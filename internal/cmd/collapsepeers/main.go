// Command collapsepeers runs the suite of middleware/collapse against this project's proxy
// and against other caches, and writes bench/collapse.md. `make collapse-peers` runs it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func main() {
	log.SetFlags(0)
	md := flag.String("md", "", "write the table to this file")
	only := flag.String("caches", "", "only the caches whose names match this regular expression")
	args := flag.String("args", "", "further arguments of the suite")
	tell := flag.String("tell", "", "internal: GET a URL")
	flag.Parse()
	if *tell != "" {
		if err := told(*tell); err != nil {
			log.Fatal(err)
		}
		return
	}
	match, err := regexp.Compile(*only)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = compare(ctx, *md, match, strings.Fields(*args))
		stop()
	}
	if err != nil {
		log.Fatal("collapsepeers: ", err)
	}
}

// told asks the command that runs the suite to restart or kill a cache.
func told(url string) error {
	resp, err := http.Get(url) //nolint:gosec,noctx // of this command's own
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

// A measured is a cache with its results.
type measured struct {
	cache
	version string
	results []result
	err     error
}

// A result is that of middleware/collapse.
type result struct {
	Name, Kind, Detail string
	Pass               bool
}

func compare(ctx context.Context, md string, match *regexp.Regexp, args []string) error {
	dir, err := os.MkdirTemp("", "collapse")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // caches run as other users
		return err
	}
	suite, proxy := filepath.Join(dir, "suite"), filepath.Join(dir, "proxy")
	for to, from := range map[string]string{suite: "./middleware/collapse", proxy: "./examples/proxy"} {
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", to, from).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	redis, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{})
	if err != nil {
		return err
	}
	defer func() { _ = redis.Stop() }()
	var all []measured
	for i, c := range caches(proxy, "redis://"+redis.Addr()) {
		if !match.MatchString(c.name) {
			continue
		}
		log.Printf("== %s", c.name)
		m := measured{cache: c, version: c.versionOf()}
		if m.results, m.err = measure(ctx, suite, filepath.Join(dir, fmt.Sprint(i)), c, args); m.err != nil {
			log.Print(m.err)
		}
		all = append(all, m)
	}
	list, err := exec.CommandContext(ctx, suite, "-list").Output()
	if err != nil {
		return err
	}
	text := table(all, string(list))
	if md == "" {
		fmt.Print(text)
		return nil
	}
	return os.WriteFile(md, []byte(text), 0o644) //nolint:gosec // a document
}

// measure starts a cache and runs the suite against it.
func measure(ctx context.Context, suite, dir string, c cache, args []string) ([]result, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	if err := c.prepare(dir, ports[0], ports[2]); err != nil {
		return nil, err
	}
	p := &process{cache: c, dir: dir, port: ports[0], args: c.args(dir, ports[0], ports[2])}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	defer p.kill()
	control, err := p.listen(ctx)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	call := func(path string) string { return fmt.Sprintf("%s -tell http://%s/%s", self, control.Addr(), path) }
	cmd := exec.CommandContext(ctx, suite, append([]string{
		"-json", "-cache", fmt.Sprintf("http://127.0.0.1:%d", ports[0]), "-origin", fmt.Sprintf("127.0.0.1:%d", ports[2]), "-restart", call("restart"),
	}, args...)...)
	if c.args2 != nil {
		second := &process{cache: c, dir: dir, port: ports[1], args: c.args2(dir, ports[1], ports[2])}
		if err := second.start(ctx); err != nil {
			return nil, err
		}
		defer second.kill()
		cmd.Args = append(cmd.Args, "-cache2", fmt.Sprintf("http://127.0.0.1:%d", ports[1]), "-crash", call("crash"))
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var report struct{ Cases []result }
	if e := json.Unmarshal(out, &report); e != nil {
		return nil, fmt.Errorf("the suite: %w, %w: %.500s", err, e, out)
	}
	return report.Cases, nil
}

// A process runs a cache.
type process struct {
	cache cache
	dir   string
	port  int
	args  []string
	cmd   *exec.Cmd
}

// start starts the cache and returns when it listens.
func (p *process) start(ctx context.Context) error {
	name, err := exec.LookPath(p.args[0])
	if err != nil {
		return fmt.Errorf("%w: apt-get install nginx-light varnish squid trafficserver apache2", err)
	}
	p.cmd = exec.Command(name, p.args[1:]...) //nolint:gosec,noctx // stop ends it
	p.cmd.Dir = p.dir
	if p.cache.env != nil {
		p.cmd.Env = append(os.Environ(), p.cache.env(p.dir)...)
	}
	out, err := os.OpenFile(filepath.Join(p.dir, fmt.Sprintf("output.%d", p.port)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	inGroup(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	for range 200 {
		if conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", p.port), time.Second); err == nil {
			_ = conn.Close()
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	text, _ := os.ReadFile(out.Name())
	return fmt.Errorf("%s does not listen: %.2000s", p.cache.name, text)
}

// kill ends the cache without warning, with the processes that it has started. It returns
// when none of them listens.
func (p *process) kill() {
	end(p.cmd)
	_ = p.cmd.Wait()
	for range 100 {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", p.port), time.Second)
		if err != nil {
			return
		}
		_ = conn.Close()
		time.Sleep(20 * time.Millisecond)
	}
}

// listen serves requests for a restart or a crash.
func (p *process) listen(ctx context.Context) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { p.kill() })
	mux.HandleFunc("/restart", func(w http.ResponseWriter, _ *http.Request) {
		p.kill()
		if err := p.start(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	go func() { _ = http.Serve(l, mux) }() //nolint:gosec // it ends with the listener
	return l, nil
}

// freePorts returns ports on which nothing listened just now.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
