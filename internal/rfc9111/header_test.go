package rfc9111_test

import (
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type dateRow struct {
	rule
	text string
	want time.Time
}

func utc(y int, mo time.Month, d, h, mi, s int) time.Time {
	return time.Date(y, mo, d, h, mi, s, 0, time.UTC)
}

var dateRows = []dateRow{
	{rule{"9110 5.6.7", "the preferred form of a date"}, "Sun, 06 Nov 1994 08:49:37 GMT", utc(1994, 11, 6, 8, 49, 37)},
	{rule{"9110 5.6.7", "the form of RFC 850"}, "Sunday, 06-Nov-94 08:49:37 GMT", utc(1994, 11, 6, 8, 49, 37)},
	{rule{"9110 5.6.7", "the form of asctime"}, "Sun Nov  6 08:49:37 1994", utc(1994, 11, 6, 8, 49, 37)},
	{rule{"9110 5.6.7", "a year of two digits within 50 years is to come"}, "Friday, 01-Jan-70 00:00:00 GMT", utc(2070, 1, 1, 0, 0, 0)},
	{rule{"9110 5.6.7", "a year of two digits beyond them has passed"}, "Friday, 01-Jan-77 00:00:00 GMT", utc(1977, 1, 1, 0, 0, 0)},
	{rule{"9110 5.6.7", "another zone than GMT is no date"}, "Sun, 06 Nov 1994 08:49:37 EST", time.Time{}},
	{rule{"9110 5.6.7", "another zone in the form of RFC 850 isn't either"}, "Sunday, 06-Nov-94 08:49:37 EST", time.Time{}},
	{rule{"9110 5.6.7", "an hour of one digit is no date"}, "Sun, 06 Nov 1994 8:49:37 GMT", time.Time{}},
	{rule{"9110 5.6.7", "a fraction of a second is no date"}, "Sun, 06 Nov 1994 08:49:37.5 GMT", time.Time{}},
	{rule{"9110 5.6.7", "a number is no date"}, "0", time.Time{}},
	{rule{"9110 5.6.7", "a day that isn't in the month is no date"}, "Sun, 31 Feb 1994 08:49:37 GMT", time.Time{}},
}

func TestParseDate(t *testing.T) {
	run(t, dateRows, func(t *testing.T, r dateRow) {
		got, ok := rfc9111.ParseDate(r.text, noon)
		if ok != !r.want.IsZero() || (ok && !got.Equal(r.want)) {
			t.Errorf("got %v %v", got, ok)
		}
	})
}
