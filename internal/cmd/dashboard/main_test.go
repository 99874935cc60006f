package main

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

func TestCommittedDashboardIsTheGeneratedOne(t *testing.T) {
	committed, err := os.ReadFile("../../../dashboards/stampede.json")
	if err != nil {
		t.Fatal(err)
	}
	generated, err := json.Marshal(dashboard())
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(committed, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(generated, &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Error("dashboards/stampede.json differs from the output of internal/cmd/dashboard: run make dashboard")
	}
}
