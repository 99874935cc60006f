package sim

import (
	"bytes"
	"strconv"
)

// frame returns the first whole value of the RESP bytes b, nil if it isn't
// there yet, and the strings it is made of.
func frame(b []byte) (whole []byte, parts []string) {
	n, parts := scan(b, nil)
	if n < 0 {
		return nil, nil
	}
	return b[:n], parts
}

// scan returns the length of the value at the start of b, or -1.
func scan(b []byte, parts []string) (int, []string) {
	line := bytes.Index(b, []byte("\r\n"))
	if line < 1 {
		return -1, parts
	}
	head, n := string(b[1:line]), line+2
	switch b[0] {
	case '$', '=', '!':
		size, _ := strconv.Atoi(head)
		if size < 0 {
			return n, append(parts, "")
		}
		if len(b) < n+size+2 {
			return -1, parts
		}
		return n + size + 2, append(parts, string(b[n:n+size]))
	case '*', '>', '~', '%':
		count, _ := strconv.Atoi(head)
		if b[0] == '%' {
			count *= 2
		}
		for range count {
			var size int
			if size, parts = scan(b[n:], parts); size < 0 {
				return -1, parts
			}
			n += size
		}
		return n, parts
	}
	return n, append(parts, head)
}

// encode is the command made of the parts.
func encode(parts []string) []byte {
	b := []byte("*" + strconv.Itoa(len(parts)) + "\r\n")
	for _, p := range parts {
		b = append(b, "$"+strconv.Itoa(len(p))+"\r\n"+p+"\r\n"...)
	}
	return b
}
