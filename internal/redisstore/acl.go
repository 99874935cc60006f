package redisstore

import "strings"

const (
	neededCommands = "+hello +ping +get +mget +exists +pttl +time +set +getrange +setrange +del +pexpire +incr" +
		" +sadd +srem +scard +smembers +hmget +hset +hincrby +eval +evalsha" +
		" +publish +subscribe +unsubscribe +pubsub|numsub"
	neededInClusters = " +cluster|slots +command +pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe"
)

// ACLRules returns the rules of ACL SETUSER for a Redis user that serves one store in the
// given namespace, and nothing else:
//
//	rules, err := cache.ACLRules("app", false)
//	// ACL SETUSER app on >password <rules>
//
// The rules replace all keys, channels and commands that the user had. A cluster needs a
// few more commands, and the user on each of its nodes; before Redis 7 it does not know
// the three that begin with "s" and end with "publish" or "subscribe", which are to be
// left out there. A client with Options.DB needs +select as well, one with ClientName
// +client|setname, and a budget (package budget) its own keys. The error is about the
// namespace, as that of NewRedis.
func ACLRules(namespace string, cluster bool) (string, error) {
	s, err := newKeyspace(namespace)
	if err != nil {
		return "", err
	}
	rules := "resetkeys resetchannels -@all ~" + s.namespace + ":* &" + s.namespace + ":* " + neededCommands
	if cluster {
		rules += neededInClusters
	}
	return rules, nil
}

// toGrant is the ACL rule for a command that was refused with the given error, or empty if
// the error is not about permissions. Redis names the command, except in
// scripts before Redis 7.2.
func (s keyspace) toGrant(command string, err error) string {
	text := err.Error()
	denied := func(phrase string) bool { return strings.Contains(text, phrase) }
	if !denied("NOPERM") && !denied("ACL failure in script") && !denied("The user executing the script can't") {
		return ""
	}
	switch {
	case denied(" channel"):
		return "&" + s.namespace + ":*"
	case denied(" key"):
		return "~" + s.namespace + ":*"
	}
	if _, rest, ok := strings.Cut(text, "run the '"); ok {
		command, _, _ = strings.Cut(rest, "'")
	}
	return "+" + strings.ToLower(command)
}
