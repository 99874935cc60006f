package chaos

// Names for tests of the values.
var (
	EncodeValue = encodeValue
	DecodeValue = decodeValue
)
