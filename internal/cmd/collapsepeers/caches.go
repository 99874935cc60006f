package main

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

//go:embed conf
var conf embed.FS

// A cache is one of those that are compared.
type cache struct {
	name     string
	settings string   // for the table
	conf     string   // the directory of its configuration
	dirs     []string // that it needs
	owner    string   // of its directory; empty: the user of this process
	version  []string // command that prints its version
	env      func(dir string) []string
	args     func(dir string, port, origin int) []string // of its process, in the foreground
	args2    func(dir string, port, origin int) []string // of a second one on the same store; nil: there is none
}

// caches are the caches in the order of the table. proxy is the program of
// examples/proxy, and redis the URL of a server.
func caches(proxy, redis string) []cache {
	own := func(more ...string) func(string, int, int) []string {
		return func(_ string, port, origin int) []string {
			return append([]string{
				proxy, "-listen", fmt.Sprintf("127.0.0.1:%d", port), "-upstream", fmt.Sprintf("http://127.0.0.1:%d", origin),
				"-max-body", strconv.Itoa(32 << 20),
			}, more...)
		}
	}
	return []cache{
		{name: "stampede", settings: "examples/proxy with `-max-body 32 MiB`, in memory", args: own()},
		{
			name: "stampede, two", settings: "two of examples/proxy with `-max-body 32 MiB` and `-redis`, on one redis-server",
			args: own("-redis", redis), args2: own("-redis", redis),
		},
		{
			name: "nginx", settings: "`proxy_cache_lock`, `proxy_cache_revalidate`, background updates; no requests with `Authorization`", conf: "nginx",
			version: []string{"nginx", "-v"},
			args: func(dir string, _, _ int) []string {
				return []string{"nginx", "-c", dir + "/nginx.conf", "-e", dir + "/error.log"}
			},
		},
		{
			name: "Varnish", settings: "the built-in configuration, 512 MB of memory", conf: "varnish", version: []string{"varnishd", "-V"},
			args: func(dir string, port, _ int) []string {
				return []string{"varnishd", "-F", "-j", "none", "-f", dir + "/default.vcl", "-a", fmt.Sprintf("127.0.0.1:%d", port), "-n", dir + "/work", "-s", "malloc,512m"}
			},
		},
		{
			name: "Squid", settings: "`collapsed_forwarding on`, 512 MB of memory", conf: "squid", owner: "proxy", version: []string{"squid", "-v"},
			args: func(dir string, _, _ int) []string { return []string{"squid", "-N", "-f", dir + "/squid.conf"} },
		},
		{
			name: "ATS", settings: "the settings of its manual for collapsing: read while writer, `open_write_fail_action 5`", conf: "ats",
			dirs: []string{"cache", "run", "log"}, version: []string{"traffic_server", "-V"},
			env:  func(dir string) []string { return []string{"TS_RUNROOT=" + dir} },
			args: func(dir string, _, _ int) []string { return []string{"traffic_server"} },
		},
		{
			name: "httpd", settings: "mod_cache_disk with `CacheLock on`", conf: "httpd", dirs: []string{"cache", "lock"}, owner: "www-data",
			version: []string{"apache2", "-v"},
			args: func(dir string, _, _ int) []string {
				return []string{"apache2", "-f", dir + "/httpd.conf", "-DFOREGROUND"}
			},
		},
	}
}

// prepare writes the configuration into a directory.
func (c *cache) prepare(dir string, port, origin int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, sub := range c.dirs {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	if c.conf != "" {
		t, err := template.ParseFS(conf, "conf/"+c.conf+"/*")
		if err != nil {
			return err
		}
		for _, file := range t.Templates() {
			f, err := os.Create(filepath.Join(dir, file.Name()))
			if err != nil {
				return err
			}
			err = file.Execute(f, struct {
				Dir          string
				Port, Origin int
			}{dir, port, origin})
			if err := f.Close(); err != nil {
				return err
			}
			if err != nil {
				return err
			}
		}
	}
	return c.own(dir)
}

// own gives a directory to the user as which the cache runs.
func (c *cache) own(dir string) error {
	if c.owner == "" || os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup(c.owner)
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, uid, gid)
	})
}

// versionOf returns the first line that the version's command prints.
func (c *cache) versionOf() string {
	if len(c.version) == 0 {
		return "this commit"
	}
	out, err := exec.Command(c.version[0], c.version[1:]...).CombinedOutput()
	if err != nil && len(out) == 0 {
		return "not installed"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	for word := range strings.FieldsFuncSeq(line, func(r rune) bool { return strings.ContainsRune(" ()/", r) }) {
		word = strings.TrimPrefix(word, "varnish-")
		if word[0] >= '0' && word[0] <= '9' && strings.Contains(word, ".") {
			return word
		}
	}
	return line
}
