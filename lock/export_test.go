package lock

// ParseRecord reads a lock's file, as Files does, and tells what it holds.
func ParseRecord(b []byte) (fence uint64, holders int, err error) {
	r, err := parseRecord(b)
	return r.Fence, len(r.Holders), err
}

// ParseInfo is for tests.
var ParseInfo = parseInfo
