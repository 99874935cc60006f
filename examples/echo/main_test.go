package main

import (
	"testing"

	"github.com/stampedeguard/stampede/examples/internal/pair"
)

func TestMain(m *testing.M) { pair.Main(m, main) }

func TestFirstRequestsOfFreshProcessesAreOneRun(t *testing.T) { pair.FirstRequests(t) }

func TestREADME(t *testing.T) { pair.README(t) }
