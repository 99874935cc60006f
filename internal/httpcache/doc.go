// Package httpcache has the parts that both sides of HTTP share: the layout of a stored
// response, the index of a page's variants, the terms of storing a response, and the
// recording of a body while it is read.
package httpcache
