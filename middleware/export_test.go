package middleware

import (
	"context"
	"net/http"
)

// EncodePage and DecodePage are the codec's.
func EncodePage(status int, header http.Header, body []byte) []byte {
	b, err := pageCodec{}.Marshal(&page{status: status, header: header, body: body, trailer: http.Header{"T": {"1"}}, vary: []string{"A"}, variant: "v"})
	if err != nil {
		panic(err)
	}
	return b
}

// DecodePage decodes and encodes again.
func DecodePage(b []byte) (status int, header http.Header, body []byte, err error) {
	var p *page
	if err := (pageCodec{}).Unmarshal(b, &p); err != nil {
		return 0, nil, nil, err
	}
	if _, err := (pageCodec{}).Marshal(p); err != nil {
		return 0, nil, nil, err
	}
	return p.status, p.header, p.body, nil
}

// Variants is how many variants are counted of a page that is asked for without
// credentials.
func (m *Middleware) Variants(ctx context.Context, url string) int {
	res, err := m.guard.Peek(ctx, keyShared+url)
	if err != nil || res.Value.ix == nil {
		return 0
	}
	return len(res.Value.ix.variants)
}
