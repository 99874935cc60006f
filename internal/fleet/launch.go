package fleet

import (
	"os/exec"
	"runtime"
	"sync"
)

// launches carries start requests to the launcher goroutine.
var launches = sync.OnceValue(func() chan<- func() {
	requests := make(chan func())
	go func() { // lives as long as the process: see launch
		runtime.LockOSThread()
		for request := range requests {
			request()
		}
	}()
	return requests
})

// launch starts cmd so that it can't outlive this process. The kernel's signal
// to the children comes when the thread ends that started them (prctl(2),
// https://go.dev/issue/27505), so all are started on one that never does.
func launch(cmd *exec.Cmd) error {
	dieWithParent(cmd)
	started := make(chan error, 1)
	launches() <- func() { started <- cmd.Start() }
	return <-started
}
