package promstampede_test

import (
	"log"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/promstampede"
)

func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	metrics := promstampede.New()
	prometheus.MustRegister(metrics)
	store, err := cache.NewRedis(client, cache.Options{Namespace: "shop", Observer: metrics})
	if err != nil {
		log.Fatal(err)
	}
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: metrics})
	if err != nil {
		log.Fatal(err)
	}
	_ = users
}
