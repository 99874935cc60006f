//go:build !linux

package redistest

// parentDir is the parent of servers' directories: that of temporary files.
func parentDir() string { return "" }
