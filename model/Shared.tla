------------------------------- MODULE Shared -------------------------------
(* Tokens of locks that are shared: readers, writers, and the order        *)
(* between them.                                                           *)
(*                                                                         *)
(* Unique: a grant of a writer has tokens that no other grant has.         *)
(* InOrder: the tokens of a grant are larger than all that were returned   *)
(* before it was asked for, but among readers.                             *)
(*                                                                         *)
(* As in Tokens there is no time: keys and places end whenever they like.  *)
(* What was sent may be executed at any later time, any number of times,   *)
(* or never.  README.md tells which function of the code does each action. *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Nodes, Readers, Writers,
    Span,
    Proposals,
    Quorum,
    ReadersRaise,    \* a node raises its counter for a reader, too
    PlaceCounts,     \* a reader's confirmation names the counter that came with its place
    KeepsLarger,     \* a reader's confirmation never lowers the counter
    DropsPlaces,     \* a key that is made anew has no places of former readers
    Ends,            \* so many keys and places end, at most
    Losses           \* so many times may a node lose its data

VARIABLES
    key,             \* at each node: <<request, "exclusive">>, <<None, "shared">> or Free
    places,          \* of the readers at each node: the counter that was granted, 0: not there
    counter,
    state, proposal, told, token, agreed, \* of each request, as in Tokens
    floor,           \* history: the largest token that had been returned to one that it excludes
    ends, losses

vars == <<key, places, counter, state, proposal, told, token, agreed, floor, ends, losses>>

None == 99
Free == <<None, "free">>
SharedKey == <<None, "shared">>
Requests == Readers \cup Writers
NoPlaces == [r \in Readers |-> 0]
Max(S) == CHOOSE x \in S \cup {0} : \A y \in S : x >= y
Returned(r) == state[r] = "held"
Excludes(r, s) == r # s /\ (r \in Writers \/ s \in Writers)
First(r) == token[r] - Span + 1

Init ==
    /\ key = [n \in Nodes |-> Free]
    /\ places = [n \in Nodes |-> NoPlaces]
    /\ counter = [n \in Nodes |-> 0]
    /\ state = [r \in Requests |-> "idle"]
    /\ proposal = [r \in Requests |-> 0]
    /\ told = [r \in Requests |-> [n \in Nodes |-> 0]]
    /\ token = [r \in Requests |-> 0]
    /\ agreed = [r \in Requests |-> {}]
    /\ floor = [r \in Requests |-> 0]
    /\ ends = 0
    /\ losses = 0

Ask(r) ==
    /\ state[r] = "idle"
    /\ state' = [state EXCEPT ![r] = "asking"]
    /\ \E p \in Proposals : proposal' = [proposal EXCEPT ![r] = p]
    /\ floor' = [floor EXCEPT ![r] =
                   Max({token[s] : s \in {s \in Requests : Excludes(r, s) /\ Returned(s)}})]
    /\ UNCHANGED <<key, places, counter, told, token, agreed, ends, losses>>

(* As in Tokens. *)
Hear(r, answers, confirmed) ==
    LET yes == {n \in Nodes : answers[n] > 0}
        t == IF token[r] > 0 THEN token[r]
             ELSE IF Cardinality(yes) >= Quorum THEN Max({answers[n] : n \in Nodes}) ELSE 0
        same == {n \in yes : n \in confirmed \/ answers[n] = t}
    IN /\ told' = [told EXCEPT ![r] = answers]
       /\ token' = [token EXCEPT ![r] = t]
       /\ IF t > 0 /\ Cardinality(same) >= Quorum
          THEN /\ state' = [state EXCEPT ![r] = "held"]
               /\ agreed' = [agreed EXCEPT ![r] = {}]
          ELSE /\ agreed' = [agreed EXCEPT ![r] = confirmed]
               /\ UNCHANGED state

HearGrant(r, n, granted) ==
    \/ /\ state[r] = "asking" /\ told[r][n] = 0
       /\ Hear(r, [told[r] EXCEPT ![n] = granted], agreed[r])
    \/ UNCHANGED <<state, told, token, agreed>>

Granted(r, n) == Max({counter[n] + Span, proposal[r]})

AcquireExclusive(r, n) ==
    /\ r \in Writers /\ state[r] # "idle"
    /\ \/ /\ key[n] = Free
          /\ key' = [key EXCEPT ![n] = <<r, "exclusive">>]
          /\ counter' = [counter EXCEPT ![n] = Granted(r, n)]
       \/ /\ key[n] = <<r, "exclusive">>
          /\ UNCHANGED <<key, counter>>
    /\ HearGrant(r, n, counter'[n])
    /\ UNCHANGED <<places, proposal, floor, ends, losses>>

AcquireShared(r, n) ==
    /\ r \in Readers /\ state[r] # "idle"
    /\ key[n] \in {Free, SharedKey}
    /\ IF key[n] = SharedKey /\ places[n][r] > 0
       THEN UNCHANGED <<key, places, counter>>
       ELSE LET granted == IF ReadersRaise THEN Granted(r, n) ELSE Max({counter[n], proposal[r], Span})
                others == IF key[n] = Free /\ DropsPlaces THEN NoPlaces ELSE places[n]
            IN /\ key' = [key EXCEPT ![n] = SharedKey]
               /\ places' = [places EXCEPT ![n] = [others EXCEPT ![r] = granted]]
               /\ counter' = [counter EXCEPT ![n] = granted]
    /\ HearGrant(r, n, places'[n][r])
    /\ UNCHANGED <<proposal, floor, ends, losses>>

HearConfirm(r, n) ==
    IF state[r] = "asking" THEN Hear(r, told[r], agreed[r] \cup {n})
    ELSE UNCHANGED <<state, told, token, agreed>>

ConfirmExclusive(r, n) ==
    /\ r \in Writers
    /\ token[r] > 0 /\ told[r][n] > 0 /\ told[r][n] < token[r]
    /\ key[n] = <<r, "exclusive">> /\ counter[n] = told[r][n]
    /\ counter' = [counter EXCEPT ![n] = token[r]]
    /\ HearConfirm(r, n)
    /\ UNCHANGED <<key, places, proposal, floor, ends, losses>>

ConfirmShared(r, n) ==
    /\ r \in Readers
    /\ token[r] > 0 /\ told[r][n] > 0 /\ told[r][n] < token[r]
    /\ key[n] = SharedKey
    /\ IF PlaceCounts THEN places[n][r] = told[r][n] ELSE places[n][r] > 0
    /\ counter' = [counter EXCEPT ![n] = IF KeepsLarger THEN Max({@, token[r]}) ELSE token[r]]
    /\ HearConfirm(r, n)
    /\ UNCHANGED <<key, places, proposal, floor, ends, losses>>

(* The key ends, or is released. *)
EndKey(n) ==
    /\ key[n] # Free /\ ends < Ends
    /\ key' = [key EXCEPT ![n] = Free]
    /\ places' = IF DropsPlaces THEN [places EXCEPT ![n] = NoPlaces] ELSE places
    /\ ends' = ends + 1
    /\ UNCHANGED <<counter, state, proposal, told, token, agreed, floor, losses>>

(* A reader leaves, or its time is over, and others stay. *)
EndPlace(r, n) ==
    /\ key[n] = SharedKey /\ places[n][r] > 0 /\ ends < Ends
    /\ \E s \in Readers \ {r} : places[n][s] > 0
    /\ places' = [places EXCEPT ![n][r] = 0]
    /\ ends' = ends + 1
    /\ UNCHANGED <<key, counter, state, proposal, told, token, agreed, floor, losses>>

Lose(n) ==
    /\ losses < Losses /\ counter[n] > 0
    /\ key' = [key EXCEPT ![n] = Free]
    /\ places' = [places EXCEPT ![n] = NoPlaces]
    /\ counter' = [counter EXCEPT ![n] = 0]
    /\ losses' = losses + 1
    /\ UNCHANGED <<state, proposal, told, token, agreed, floor, ends>>

Next ==
    \/ \E r \in Requests : Ask(r)
    \/ \E r \in Requests, n \in Nodes :
        AcquireExclusive(r, n) \/ AcquireShared(r, n) \/ ConfirmExclusive(r, n) \/ ConfirmShared(r, n)
    \/ \E n \in Nodes : EndKey(n) \/ Lose(n) \/ \E r \in Readers : EndPlace(r, n)

Spec == Init /\ [][Next]_vars

(* A constraint, to find a long counterexample in a small part of the     *)
(* behaviours: a request asks when earlier requests have chosen a token.   *)
OneAsks == Cardinality({r \in Requests : state[r] = "asking" /\ token[r] = 0}) <= 1

AnyOrder == Permutations(Nodes) \cup Permutations(Readers) \cup Permutations(Writers)

Unique ==
    \A r, s \in Requests :
        Excludes(r, s) /\ Returned(r) /\ Returned(s) => First(r) .. token[r] \cap First(s) .. token[s] = {}
InOrder == \A r \in Requests : Returned(r) => First(r) > floor[r]
=============================================================================
