// Package telemetry has the parts of observation that cache, guard, budget and lock share:
// the words of an event's fields, and the announcement of components to observers.
package telemetry

// Each returns the observers that o tells: o itself, none if it is nil, or those that
// cache.Observers has joined. O is cache.Observer.
func Each[O any](o O) []O {
	if any(o) == nil {
		return nil
	}
	joined, ok := any(o).(interface{ Unwrap() []O })
	if !ok {
		return []O{o}
	}
	var each []O
	for _, one := range joined.Unwrap() {
		each = append(each, Each(one)...)
	}
	return each
}

// Attach tells those of the observers in o about a component that are a cache.Attacher. It
// returns the function that ends that.
func Attach[O any](o O, name string, component any) (detach func()) {
	var all []func()
	for _, one := range Each(o) {
		if a, ok := any(one).(interface {
			Attach(name string, component any) (detach func())
		}); ok {
			all = append(all, a.Attach(name, component))
		}
	}
	return func() {
		for _, detach := range all {
			detach()
		}
	}
}
