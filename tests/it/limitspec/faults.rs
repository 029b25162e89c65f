//! The faults that a limiter can have, each with the one behaviour that it breaks.

macro_rules! faults {
    ($($fault:ident $behaviour:literal $what:literal,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) enum Fault {
            $(#[doc = $what] $fault,)+
        }

        impl Fault {
            pub(super) const ALL: &[Self] = &[$(Self::$fault),+];

            /// The behaviour that a limiter with this fault lacks.
            pub(super) fn breaks(self) -> &'static str {
                match self {
                    $(Self::$fault => $behaviour,)+
                }
            }
        }
    };
}

faults! {
    Races "burst" "Requests that are decided while many others are do not count.",
    ClosingIsFree "connections" "The charge of a request is lost if its connection closes.",
    PipelinedIsFree "pipelined" "What came together with an earlier request does not count.",
    StreamsAreFree "streams" "Only the first stream of a connection counts.",
    ForgetsInFloods "flood" "After many refusals, the counter begins again.",
    BeginsAgain "edge" "A window ends for all its requests at once.",
    InstancesCountAlone "instances-in-turn" "A request does not count if the one before it came to another instance.",
    InstancesTellLate "instances-at-once" "A new connection does not know what other instances have admitted.",
    CountsByMethod "methods" "Each method has a counter.",
    CountsByPath "paths" "Each path has a counter.",
    CountsByAddress "addresses" "Each X-Forwarded-For has a counter.",
    NameByCase "name-case" "The name of the header is compared byte for byte.",
    KeepsSpaces "value-spaces" "Spaces are a part of the key.",
    JoinsKeys "key-twice" "Two keys are joined to a third one.",
    EmptyIsFree "key-empty" "An empty key has no limit.",
    MissingIsFree "key-missing" "Without a key there is no limit.",
    LongIsFree "key-long" "A long key has no limit.",
    ForeignIsFree "key-bytes" "A key with several bytes that are not ASCII has no limit.",
    CutsKeys "long-keys-apart" "Only the beginning of a key counts.",
    ConvertsBytes "bytes-apart" "Bytes that are no UTF-8 become the same character.",
    SmallLetters "letters-apart" "Keys are turned into small letters.",
    Decodes "escapes-apart" "Escapes in keys are decoded.",
    RefusesSteadyClients "quiet" "The last request of a client that spreads them is refused.",
    RefusesTheLastAtOnce "at-once" "The last of N connections is refused.",
    NeverForgives "recovers" "A client that was refused has N - 1 after a pause.",
    ChargesRefusals "refused-free" "Refusals are charged after some others.",
    PunishesNeighbours "neighbours" "A client is refused because another one floods.",
    ChargesFailuresTwice "failures" "A request that the upstream fails is charged twice.",
    LeavesBodies "bodies" "The body of a refused request is read as the next request.",
    Unavailable "status" "A refusal is a 503.",
    TellsFractions "retry-after" "Retry-After is no whole number.",
    TellsTooLong "told-early" "Retry-After is two seconds too long.",
    TellsTooShort "told-on-time" "Retry-After is rounded down.",
    Cacheable "cache" "A refusal may be stored for a minute.",
    Untyped "explains" "A refusal does not say of which type it is.",
    SilentHead "head" "The refusal of HEAD has no Retry-After.",
    OptionsAreFree "options" "OPTIONS has no limit.",
    SilentHttp2 "http2-refusal" "A refusal in HTTP/2 has no Retry-After.",
    WordAsTime "fields" "The time of an admitted response is a word.",
    OtherWindow "policy" "The policy names another window.",
    StaleRemaining "remaining" "What remains is told without the request itself.",
    RefusesWithOneLeft "refused-remaining" "A refusal says that one remains.",
    OtherReset "reset" "The two told times differ.",
    LargeKeys "memory" "A key takes ten times what it should.",
    NeverForgets "idle-keys" "Keys stay for ever.",
    PushesOut "pushed-out" "Many new keys push out an old one.",
    SharesCounters "crowd" "A new key has N - 1 because many others have come.",
    RefusesAtRandom "poisson" "A client that has nearly used its window is refused after a gap.",
    ForgetsBursts "bursts" "A pause after a burst gives one request more.",
    GrowsWithAge "replay" "A client that has sent much gets one request more.",
    SlowDecision "decision-time" "A decision takes 10 ms.",
    SlowRefusal "refusal-time" "A refusal takes 10 ms.",
}
