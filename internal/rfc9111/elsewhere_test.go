package rfc9111_test

// How a rule is kept that no table of this package shows.
const (
	kept = "kept"
	open = "open" // no test is named yet
)

// elsewhere are the rules that no table of this package shows, each with the tests that
// do, or with the reason why there is none. A test of another package is named
// "middleware.TestName" or "transport.TestName".
var elsewhere = []tested{
	{rule{"9111 3", "without a lifetime only the statuses of RFC 9110, 15.1 are stored"}, "TestHeuristicallyCacheableStatuses", kept},
	{rule{"9111 3", "no pair of messages gets anything stored that is private or no-store, or that sets a cookie without the option"}, "FuzzStore", kept},
	{rule{"9111 3", "a response that isn't stored isn't given to waiting requests either"}, "middleware.TestPitfall33PagesStayWithTheirUsers", kept},
	{rule{"9111 3.1", "the stored response is a copy"}, "TestStoredHeaderIsACopy", kept},
	{rule{"9111 3.1", "trailers are kept apart from the header"}, "middleware.TestTrailers, transport.TestPassesTrailersOn", kept},
	{rule{"9110 6.6.1", "a Date that can't be read is replaced by the time of arrival"}, "TestDateOfArrivalIsAdded", kept},
	{rule{"9111 3.2", "a freshened response is judged again by its new fields"}, "TestFreshenedResponseIsJudgedAgain", kept},
	{rule{"9111 3.3", "a body shorter than its Content-Length isn't stored"}, "middleware.TestPitfall37BrokenBodiesAreNotStored, transport.TestDoesNotTrustItsBaseWithLengths", kept},
	{rule{"9111 3.3", "a body that is broken off isn't stored"}, "middleware.TestPitfall37BrokenBodiesAreNotStored, transport.TestStoresNoPartOfABody", kept},
	{rule{"9111 3.3", "a transport stores a part with a strong ETag, and answers ranges within it"}, "transport.TestStoredPartAnswersRangesWithinIt", kept},
	{rule{"9111 3.3", "no other part is stored"}, "transport.TestOnlySafePartsAreStored", kept},
	{rule{"9111 3.4", "a transport combines parts that touch and have the same strong ETag"}, "transport.TestPartsThatTouchBecomeTheWhole", kept},
	{rule{"9111 3.4", "parts of different ETags are not combined"}, "transport.TestPartsOfAnotherETagAreNotCombined", kept},
	{rule{"9111 3.4", "a request for the whole is completed from a part"}, "", "not done: it gets a call of its own"},
	{rule{"9111 3.4", "a middleware stores parts"}, "", "not done: a run makes the whole page, which answers ranges"},

	{rule{"9111 4", "a stored response answers its own URI only"}, "middleware.TestStoredResponseIsServedAgain, transport.TestServesFreshResponsesToTheWholeFleet", kept},
	{rule{"9111 4", "a stored GET answers GET and HEAD"}, "middleware.TestPitfall38Head, transport.TestAnswersConditionsRangesAndHead", kept},
	{rule{"9111 4", "a response served without validation has an Age"}, "middleware.TestAgeAddsUp", kept},
	{rule{"9111 4", "unsafe methods are written through"}, "middleware.TestPitfall41UnsafeMethods", kept},
	{rule{"9111 4", "requests that wait share one response, if it may be reused"}, "middleware.TestConcurrentRequestsAreOneRun, transport.TestCollapsesIdenticalRequestsAcrossProcesses", kept},
	{rule{"9111 4.1", "at most MaxVaryNames fields are nominated; with more a response isn't stored"}, "TestVaryIsCapped", kept},
	{rule{"9111 4.1", "Host is that of the request"}, "TestVariantKeyOfHostIsThatOfTheRequest", kept},
	{rule{"9111 4.1", "a key shows no credentials"}, "TestVariantKeyShowsNoCredentials", kept},
	{rule{"9111 4.1", "a request that no variant matches is forwarded, and waits for no other variant"}, "middleware.TestPitfall35VariantsDoNotWaitForEachOther, transport.TestTellsVariantsApart", kept},
	{rule{"9111 4.1", "variants are capped"}, "middleware.TestPitfall35Vary", kept},
	{rule{"9111 4.2.2", "Options.Lifetime counts from the arrival, however long the request took"}, "TestALifetimeOfTheOptionsCountsFromTheArrival, middleware.TestHandlerSlowerThanItsLifetimeIsShared, transport.TestSharesUpstreamsSlowerThanTheirTTL", kept},
	{rule{"9111 4.2.3", "the time that the request took counts as age"}, "TestTheTimeOfTheRequestCountsAsAge, middleware.TestResponseFromElsewhereAgesWhileItIsFetched", kept},
	{rule{"9111 4.2.3", "the time in the cache counts as age, by the cache's clock"}, "middleware.TestAgeAddsUp", kept},
	{rule{"9111 4.3.1", "a stale response with a validator is validated"}, "middleware.TestStaleResponseIsValidated, transport.TestValidatesStaleResponses", kept},
	{rule{"9111 4.3.3", "a 304 renews the stored response, and the client gets that whole"}, "middleware.TestStaleResponseIsValidated, transport.TestValidatesStaleResponses", kept},
	{rule{"9111 4.3.3", "another answer than 304 replaces the stored response"}, "middleware.TestNoCacheIsValidatedEachTime", kept},
	{rule{"9111 4.3.3", "an error of the origin's is forwarded, unless staleness is allowed"}, "middleware.TestErrorIsForwardedWhereStaleIsForbidden", kept},
	{rule{"9111 4.3.4", "a 304 that speaks of something else: asked again without conditions"}, "middleware.TestNotModifiedThatSpeaksOfSomethingElse", kept},
	{rule{"9111 4.3.5", "a HEAD may freshen the stored response"}, "", "not done: HEAD is answered from the store"},
	{rule{"9111 4.4", "the target of a request to a server is made of its Host"}, "TestTargetOfAServersRequest", kept},
	{rule{"9111 4.4", "a write that succeeds removes the stored responses of its target"}, "middleware.TestPitfall41UnsafeMethods, transport.TestUnsafeMethodsInvalidate", kept},
	{rule{"9111 4.4", "a write that fails removes nothing"}, "middleware.TestPitfall41UnsafeMethods", kept},
	{rule{"9111 5.1", "Age is in whole seconds, from 0 to 2^31"}, "TestAgeIsWholeSecondsInBounds", kept},
	{rule{"9111 5.2.1.6", "no-transform: the stored response isn't compressed"}, "middleware.TestNoTransformIsNotCompressed", kept},
	{rule{"9111 5.2.1.7", "only-if-cached: 504 where nothing is stored"}, "TestOnlyIfCachedWithNothingStoredIs504, transport.TestObeysTheRequest", kept},
	{rule{"9111 5.2.2.2", "must-revalidate: an error where validation fails"}, "middleware.TestErrorIsForwardedWhereStaleIsForbidden", kept},
	{rule{"9111 5.2.2.4", "no-cache: a request that comes after a run has begun doesn't get its answer without another validation"}, "middleware.TestNoCacheIsSharedWithEarlierRequestsOnly, transport.TestAsksEachTimeForNoCache", kept},

	{rule{"5861 3", "stale-while-revalidate: served, and renewed by a run in the background"}, "middleware.TestStaleWhileRevalidate, transport.TestServesStaleWhileOneValidates", kept},
	{rule{"5861 4", "errors are 500, 502, 503 and 504"}, "TestErrorsOfStaleIfError", kept},
	{rule{"5861 4", "stale-if-error: the stale response instead of the error"}, "middleware.TestStaleIfError, transport.TestServesStaleIfErrorAndOnlyThen", kept},

	{rule{"9110 7.6.1", "the fields of a connection aren't passed on"}, "middleware.TestConnectionFieldsAreNotStored", kept},
	{rule{"9110 7.6.3", "Via, by option"}, "middleware.TestVia", kept},
	{rule{"9110 9.3.2", "HEAD never fills GET"}, "middleware.TestPitfall38Head", kept},
	{rule{"9110 9.3.3", "a response to POST for its own URL answers later GETs, by option"}, "middleware.TestPostAnswersLaterGetsOfItsURL, transport.TestPostAnswersLaterGetsOfItsURL", kept},
	{rule{"9110 9.3.3", "no other response to POST does"}, "TestStorePosted, middleware.TestOtherPostsAnswerNoGet, transport.TestOtherPostsAnswerNoGet", kept},
	{rule{"9110 9.3.3", "an invalidation during the POST wins"}, "middleware.TestInvalidationDuringAPostWins, transport.TestInvalidationDuringAPostWins", kept},
	{rule{"9110 9.3.3", "a GET waits for no POST, and its response stays"}, "middleware.TestPostWithASlowClientHoldsUpNoGet, transport.TestPostWithASlowClientHoldsUpNoGet", kept},
	{rule{"9110 9.3.3", "a response to POST that does not say public answers requests with its credentials only"}, "transport.TestPostAnswersGetsWithItsCredentialsOnly", kept},
	{rule{"9110 13", "conditions don't reach a run that others share"}, "TestNothingConditionalIsLeft", kept},
	{rule{"9110 13", "304 to If-None-Match and If-Modified-Since, from the store"}, "middleware.TestPitfall38ConditionsAreAnsweredFromTheWholeResponse, transport.TestAnswersConditionsRangesAndHead", kept},
	{rule{"9110 13.1.3", "304 to If-Modified-Since by the Date of a response without Last-Modified"}, "transport.TestJudgesIfModifiedSinceByDateWithoutLastModified", kept},
	{rule{"9110 14", "206 with one range or several, 416 with the length"}, "TestRangesAreServed", kept},
	{rule{"9110 14", "206 and 416 from the store"}, "middleware.TestPitfall38ConditionsAreAnsweredFromTheWholeResponse, transport.TestAnswersConditionsRangesAndHead", kept},

	{rule{"9211 2", "a cache appends to the entries of those before it"}, "TestStatusIsAppended", kept},
	{rule{"9211 2", "every response that the cache had a part in has it"}, "middleware.TestEveryResponseHasCacheStatus", kept},
	{rule{"9211 2.7", "the key is shown only if asked for"}, "middleware.TestEveryResponseHasCacheStatus", kept},
	{rule{"9213 2.2", "of several targeted fields the most specific that is valid rules"}, "TestTheMostSpecificTargetRules", kept},
	{rule{"9213 2.2", "a private cache obeys none unless told to"}, "TestTheMostSpecificTargetRules", kept},

	{rule{"9111 3", "a transport keeps a private response for requests with the same credentials"}, "transport.TestKeepsPrivateResponsesOnlyForThoseItKnows", kept},
	{rule{"9111 3.5", "a response that must be validated before each use isn't shared among waiting requests with credentials"}, "middleware.TestPitfall33CredentialedRequestsDoNotShareUnvalidatedPages", kept},
	{rule{"9111 3.5", "a transport stores responses to requests with credentials for requests with the same"}, "transport.TestSharesOnlyWithTheSameCredentials", kept},
	{rule{"9111 3.5", "a transport that is a shared cache goes by the rules of one"}, "transport.TestAsASharedCache", kept},
	{rule{"9111 4.1", "variants that are stored stay when a response varies on more"}, "transport.TestKeepsVariantsWhenMoreIsVariedOn", kept},
	{rule{"9111 4.4", "a call doesn't bring back a response that was removed during it"}, "transport.TestCallNeverBringsBackADeletedResponse", kept},
	{rule{"9110 13", "a transport validates with ETag, or else Last-Modified"}, "transport.TestValidatesWithAnyValidator", kept},
}
