package middleware

import (
	"net/http"
	"slices"
	"strings"
)

// codings are the content codings that shared runs hear of (the IANA registry, without
// aliases). A client could make a page vary without end by others.
var codings = []string{"aes128gcm", "br", "compress", "dcb", "dcz", "deflate", "exi", "gzip", "identity", "pack200-gzip", "zstd", "x-gzip", "*"}

// knownEncodings is an Accept-Encoding with the codings that are known, each once.
func knownEncodings(lines []string) string {
	var kept, names []string
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			coding, params, _ := strings.Cut(part, ";")
			coding, params = strings.ToLower(strings.TrimSpace(coding)), strings.TrimSpace(params)
			if !slices.Contains(codings, coding) || slices.Contains(names, coding) {
				continue
			}
			names = append(names, coding)
			if params != "" {
				coding += ";" + params
			}
			kept = append(kept, coding)
		}
	}
	return strings.Join(kept, ", ")
}

// traces are headers that name a request in traces and logs. A shared run gets those of the
// request that starts it, and no other client gets them: see withoutTraces.
var traces = map[string]bool{
	"Traceparent": true, "Tracestate": true, "X-Request-Id": true, "X-Correlation-Id": true, "X-Cloud-Trace-Context": true,
	"X-Amzn-Trace-Id": true, "Uber-Trace-Id": true, "B3": true, "X-B3-Traceid": true, "X-B3-Spanid": true, "X-B3-Parentspanid": true,
	"X-B3-Sampled": true, "X-B3-Flags": true, "X-Datadog-Trace-Id": true, "X-Datadog-Parent-Id": true, "X-Datadog-Sampling-Priority": true,
}

// isTrace reports whether a header names a request in traces, in a form that does no harm
// in a page.
func isTrace(name string, values []string) bool {
	return traces[name] && len(values) == 1 && len(values[0]) <= maxTrace && !strings.ContainsFunc(values[0], func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("-_.:/=,;@+* ", c)
	})
}

// maxTrace is the bound of W3C Trace Context for a tracestate, in bytes.
const maxTrace = 512

// withoutTraces removes the fields that identify the request behind a stored header.
func withoutTraces(h http.Header) {
	for name := range h {
		if traces[name] || name == "Traceresponse" || name == "X-Trace-Id" || name == "X-Amzn-Requestid" {
			delete(h, name)
		}
	}
}
