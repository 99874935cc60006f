package work

import "testing"

func TestMeterIgnoresConnectionSetup(t *testing.T) {
	commands, bytes := counts("# Stats\r\ntotal_net_input_bytes:100\r\ntotal_net_output_bytes:23\r\n# Commandstats\r\n" +
		"cmdstat_get:calls=7,usec=1,usec_per_call=1.00\r\ncmdstat_hello:calls=5,usec=1\r\ncmdstat_ping:calls=9,usec=1\r\ncmdstat_info:calls=3,usec=1\r\n" +
		"cmdstat_client|tracking:calls=2,usec=1\r\ncmdstat_script|load:calls=4,usec=1\r\n")
	if commands != 11 || bytes != 123 {
		t.Errorf("%v commands and %v bytes, want 11 and 123", commands, bytes)
	}
}
