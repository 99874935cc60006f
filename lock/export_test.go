package lock

// ParseRecord reads a lock's file, as Files does, and returns its content.
func ParseRecord(b []byte) (fence uint64, holders int, err error) {
	r, err := parseRecord(b)
	return r.Fence, len(r.Holders), err
}

// ParseInfo is for tests.
var ParseInfo = parseInfo

// NoteLoss is the loss of a lock in a process that is frozen before the context ends.
func NoteLoss(k *Lock) bool { return k.noteLoss() }

// Strays is the number of IDs that may be granted without a holder.
func Strays(l *Locker) int { return len(l.strays.all) }
