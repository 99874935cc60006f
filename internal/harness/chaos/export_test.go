package chaos

// What tests of the values need.
var (
	EncodeValue = encodeValue
	DecodeValue = decodeValue
)
