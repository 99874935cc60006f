vcl 4.1;

# All else is Varnish's built-in configuration.
backend default {
  .host = "127.0.0.1";
  .port = "{{.Origin}}";
}
