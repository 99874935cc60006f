// Package thirdparty tests the project with libraries that its users use and that
// it doesn't need itself. It is a module of its own, so that no other module
// depends on them.
package thirdparty
