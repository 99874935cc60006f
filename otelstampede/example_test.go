package otelstampede_test

import (
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/otelstampede"
)

func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	tel, err := otelstampede.New(otelstampede.Options{}) // the global providers
	if err != nil {
		log.Fatal(err)
	}
	store, err := cache.NewRedis(client, cache.Options{Namespace: "shop", Observer: tel})
	if err != nil {
		log.Fatal(err)
	}
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: tel})
	if err != nil {
		log.Fatal(err)
	}
	_ = users
}
