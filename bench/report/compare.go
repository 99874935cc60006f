package report

import "math"

// A Verdict compares our figure in a case with that of the best peer.
type Verdict struct {
	Ours *Result
	Mine float64

	Best   *Result // nil if no peer did the work
	Theirs float64
	Ratio  float64 // ours to theirs

	LimitName  string
	LimitRatio float64 // ours to the limit; 0 if there is none

	Standing Standing
}

// A Standing is how a row ended.
type Standing string

// Standings. Where each median is within the other's rounds, there is no winner.
const (
	First Standing = "first"
	Tied  Standing = "tied"
	Close Standing = "within the spread"
	Alone Standing = "alone"
	Loses Standing = "a peer wins"
)

// Compare judges a headline metric. ok is false if we have no figure.
func (r *Report) Compare(m Metric, c *Case) (v Verdict, ok bool) {
	for _, res := range c.Results {
		f := res.Figures[m.Name]
		if f == nil {
			continue
		}
		s := r.System(res.System)
		switch {
		case s.Ours:
			if v.Ours == nil || better(m, f.Median(), v.Mine) {
				v.Ours, v.Mine = res, f.Median()
			}
		case r.rival(m, res):
			if v.Best == nil || better(m, f.Median(), v.Theirs) {
				v.Best, v.Theirs = res, f.Median()
			}
		}
	}
	if v.Ours == nil {
		return v, false
	}
	v.LimitName, v.LimitRatio = r.limit(m, c, v.Mine)
	if v.Best == nil {
		v.Standing = Alone
		return v, true
	}
	v.Ratio = ratio(v.Mine, v.Theirs)
	a, b := v.Ours.Figures[m.Name], v.Best.Figures[m.Name]
	switch {
	case math.Abs(v.Mine-v.Theirs) <= m.Floor:
		v.Standing = Tied
	case b.spans(v.Mine) && a.spans(v.Theirs):
		v.Standing = Close
	case better(m, v.Mine, v.Theirs):
		v.Standing = First
	default:
		v.Standing = Loses
	}
	return v, true
}

// rival reports whether a peer's figure is compared with ours.
func (r *Report) rival(m Metric, res *Result) bool {
	s := r.System(res.System)
	return !s.Ours && (res.Rival || m.Open && !s.Limit)
}

// limit returns the ratio of a figure to its limit.
func (r *Report) limit(m Metric, c *Case, figure float64) (string, float64) {
	if m.LimitValue > 0 {
		return m.LimitName, figure / m.LimitValue
	}
	if m.Limit == "" {
		return "", 0
	}
	for _, res := range c.Results {
		if f := res.Figures[m.Name]; res.System == m.Limit && f != nil {
			return m.Limit, ratio(figure, f.Median())
		}
	}
	return "", 0
}

func better(m Metric, a, b float64) bool {
	if m.Better == Higher {
		return a > b
	}
	return a < b
}

// ratio of two figures; NaN where the second is nothing.
func ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}
