package middleware_test

import (
	"io"
	"log"
)

// quietLog keeps the panics that tests provoke out of their output.
var quietLog = log.New(io.Discard, "", 0)
