package redistest

import (
	"os/exec"
	"runtime"
	"sync"
)

// launches carries start requests to the launcher goroutine.
var launches = sync.OnceValue(func() chan<- func() {
	requests := make(chan func())
	// This goroutine, and the thread locked to it, live as long as the process
	// on purpose: see startChild.
	go func() {
		runtime.LockOSThread()
		for request := range requests {
			request()
		}
	}()
	return requests
})

// startChild starts cmd so that it cannot outlive this process.
//
// PR_SET_PDEATHSIG fires when the parent thread ends, not the parent process
// (prctl(2)). The Go runtime ends threads at will, among them that of any
// goroutine which returns while locked; a child started from an ordinary
// goroutine may so be killed in the middle of a test. All children are
// therefore started by one goroutine that stays locked to its thread and never
// returns. See https://go.dev/issue/27505.
func startChild(cmd *exec.Cmd) error {
	dieWithParent(cmd)
	started := make(chan error, 1)
	launches() <- func() { started <- cmd.Start() }
	return <-started
}
