------------------------------- MODULE Lease -------------------------------
(* A lease by a majority of nodes: time, drift, renewals, releases, and    *)
(* nodes that forget.                                                      *)
(*                                                                         *)
(* Exclusive: two requests never have a valid lease at a time.             *)
(* StaysReleased: no renewal creates a key again where its release was     *)
(* executed.                                                               *)
(* OneWorks: two sessions never work at a time.                            *)
(*                                                                         *)
(* What was sent may be executed at any later time, any number of times,   *)
(* or never, and time may pass between any two steps.  README.md tells     *)
(* which function of the code does each action.                            *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Nodes,
    Requests,       \* each of a host of its own
    Quorum,         \* so many nodes decide
    Ttl,            \* in ticks
    Drift,          \* by so much may a node's clock be faster, in a ttl
    Margin,         \* by so much does a host end its lease sooner
    Renews,         \* whether leases are renewed
    CountsFrom,     \* validity: "the first send", or a variant: "the answer"
    Steals,         \* a variant: a renewal takes the place of another's key
    Tombstones,     \* a release keeps late renewals from creating the key
    Losses,         \* so many times may a node lose its data
    MarkerStays,    \* a node that loses its last data keeps its marker
    Quarantine,     \* for so long does a host not ask a node that has, from when it notices
    Settle,         \* for so long do renewals at the node not count
    Timeout,        \* a round of acquires that lasts for so long grants nothing
    Marker,         \* the commands that bring the marker of the data that their host knows
    Jumps,          \* so many times may a node's clock be set forward
    Works           \* whether sessions check their lease, and then work

VARIABLES
    key,            \* at each node: <<request, "grant" or "renewal">>
    age,            \* of the key, since its time to live was set
    closed,         \* at each node: the requests whose tombstone is there
    state,          \* of each request
    round,          \* how long ago its present round began
    validity,       \* how long its lease is valid yet
    asked,          \* the nodes that were sent its acquire, and may execute it yet
    votes,          \* those that said yes in its present round
    renewing,       \* whether a round of renewals is out
    renewed,        \* whether a renewal was ever sent
    gone,           \* history: the nodes that executed its release after that
    known,          \* the nodes whose marker its host knows
    wait,           \* how long it does not ask each node yet
    working,        \* the requests whose sessions work
    losses,
    jumps

vars == <<key, age, closed, state, round, validity, asked, votes, renewing, renewed, gone, known,
          wait, working, losses, jumps>>
atNodes == <<key, age, closed>>
ofGuard == <<known, wait>>
counts == <<losses, jumps>>

None == 99
Free == <<None, "free">>
Later(x) == IF x < Ttl THEN x + 1 ELSE x
Less(x) == IF x > 0 THEN x - 1 ELSE 0

Init ==
    /\ key = [n \in Nodes |-> Free]
    /\ age = [n \in Nodes |-> 0]
    /\ closed = [n \in Nodes |-> {}]
    /\ state = [r \in Requests |-> "idle"]
    /\ round = [r \in Requests |-> 0]
    /\ validity = [r \in Requests |-> 0]
    /\ asked = [r \in Requests |-> {}]
    /\ votes = [r \in Requests |-> {}]
    /\ renewing = [r \in Requests |-> FALSE]
    /\ renewed = [r \in Requests |-> FALSE]
    /\ gone = [r \in Requests |-> {}]
    /\ known = [r \in Requests |-> Nodes]
    /\ wait = [r \in Requests |-> [n \in Nodes |-> 0]]
    /\ working = {}
    /\ losses = 0
    /\ jumps = 0

(* A key may expire when a fast clock says so.  A slow one may keep it for  *)
(* as long as it likes.                                                     *)
Expire(n) ==
    /\ key[n] # Free
    /\ age[n] >= Ttl - Drift
    /\ key' = [key EXCEPT ![n] = Free]
    /\ age' = [age EXCEPT ![n] = 0]
    /\ UNCHANGED <<closed, state, round, validity, asked, votes, renewing, renewed, gone, ofGuard,
                   working, counts>>

Tick ==
    /\ \E r \in Requests : state[r] \in {"asking", "held"} \/ \E n \in Nodes : wait[r][n] > 0
    /\ age' = [n \in Nodes |-> IF key[n] = Free THEN 0 ELSE Later(age[n])]
    /\ round' = [r \in Requests |->
                   IF state[r] = "asking" \/ renewing[r] THEN Later(round[r]) ELSE 0]
    /\ validity' = [r \in Requests |-> Less(validity[r])]
    /\ wait' = [r \in Requests |-> [n \in Nodes |-> Less(wait[r][n])]]
    /\ UNCHANGED <<key, closed, state, asked, votes, renewing, renewed, gone, known, working, counts>>

------------------------------------------------------------------------------
(* The host *)

Ask(r) ==
    /\ state[r] = "idle"
    /\ asked' = [asked EXCEPT ![r] = {n \in known[r] : wait[r][n] = 0}]
    /\ Cardinality(asked'[r]) >= Quorum
    /\ state' = [state EXCEPT ![r] = "asking"]
    /\ UNCHANGED <<atNodes, round, validity, votes, renewing, renewed, gone, ofGuard, working, counts>>

(* How long a lease is valid by a majority that has said yes now. *)
Valid(r) == IF CountsFrom = "the answer" THEN Ttl - Margin
            ELSE IF round[r] < Ttl - Margin THEN Ttl - Margin - round[r] ELSE 0

BeginRenewal(r) ==
    /\ Renews
    /\ state[r] = "held"
    /\ ~renewing[r] \/ round[r] > 0
    /\ validity[r] > 0
    /\ renewing' = [renewing EXCEPT ![r] = TRUE]
    /\ renewed' = [renewed EXCEPT ![r] = TRUE]
    /\ votes' = [votes EXCEPT ![r] = {}]
    /\ round' = [round EXCEPT ![r] = 0]
    /\ UNCHANGED <<atNodes, state, validity, asked, gone, ofGuard, working, counts>>

(* A request is given up, or a lease released: by a session that does not   *)
(* work any more.                                                           *)
Release(r) ==
    /\ state[r] \in {"asking", "held"}
    /\ r \notin working
    /\ state' = [state EXCEPT ![r] = "released"]
    /\ validity' = [validity EXCEPT ![r] = 0]
    /\ votes' = [votes EXCEPT ![r] = {}]
    /\ renewing' = [renewing EXCEPT ![r] = FALSE]
    /\ round' = [round EXCEPT ![r] = 0]
    /\ UNCHANGED <<atNodes, asked, renewed, gone, ofGuard, working, counts>>

(* A session looks whether its lease is valid, and works. *)
Work(r) ==
    /\ Works
    /\ validity[r] > 0
    /\ working' = working \cup {r}
    /\ UNCHANGED <<atNodes, state, round, validity, asked, votes, renewing, renewed, gone, ofGuard,
                   counts>>

EndWork(r) ==
    /\ r \in working
    /\ working' = working \ {r}
    /\ UNCHANGED <<atNodes, state, round, validity, asked, votes, renewing, renewed, gone, ofGuard,
                   counts>>

------------------------------------------------------------------------------
(* A node executes a command, and the host hears the answer at once: a     *)
(* later answer could only make the same lease begin later.                *)

Acquire(r, n) ==
    /\ n \in asked[r]
    /\ key[n] \in {Free, <<r, "grant">>}
    /\ key' = [key EXCEPT ![n] = <<r, "grant">>]
    /\ state[r] = "asking" => n \notin votes[r]
    /\ IF state[r] = "asking"
       THEN LET yes == votes[r] \cup {n}
            IN IF Cardinality(yes) >= Quorum /\ Valid(r) > 0 /\ round[r] < Timeout
               THEN /\ state' = [state EXCEPT ![r] = "held"]
                    /\ validity' = [validity EXCEPT ![r] = Valid(r)]
                    /\ votes' = [votes EXCEPT ![r] = {}]
                    /\ round' = [round EXCEPT ![r] = 0]
               ELSE /\ votes' = [votes EXCEPT ![r] = yes]
                    /\ UNCHANGED <<state, round, validity>>
       ELSE UNCHANGED <<state, round, validity, votes>>
    /\ UNCHANGED <<age, closed, asked, renewing, renewed, gone, ofGuard, working, counts>>

Renew(r, n) ==
    /\ renewed[r]
    /\ key[n][1] = r \/ (key[n] = Free /\ r \notin closed[n]) \/ Steals
    /\ key[n] = <<r, "grant">> => r \notin closed[n]
    /\ key[n] = Free /\ "renew" \in Marker => n \in known[r]
    /\ key' = [key EXCEPT ![n] = <<r, "renewal">>]
    /\ age' = [age EXCEPT ![n] = 0]
    /\ IF renewing[r] /\ wait[r][n] <= Quarantine - Settle
       THEN LET yes == votes[r] \cup {n}
            IN IF Cardinality(yes) >= Quorum
               THEN /\ validity' = [validity EXCEPT ![r] =
                                      IF @ = 0 THEN 0
                                      ELSE IF Valid(r) > @ THEN Valid(r) ELSE @]
                    /\ votes' = [votes EXCEPT ![r] = {}]
                    /\ renewing' = [renewing EXCEPT ![r] = FALSE]
                    /\ round' = [round EXCEPT ![r] = 0]
               ELSE /\ votes' = [votes EXCEPT ![r] = yes]
                    /\ UNCHANGED <<round, validity, renewing>>
       ELSE UNCHANGED <<round, validity, votes, renewing>>
    /\ UNCHANGED <<closed, state, asked, renewed, gone, ofGuard, working, counts>>

ExecuteRelease(r, n) ==
    /\ state[r] = "released"
    /\ key[n][1] = r \/ (renewed[r] /\ n \notin gone[r])
    /\ key' = IF key[n][1] = r THEN [key EXCEPT ![n] = Free] ELSE key
    /\ age' = IF key[n][1] = r THEN [age EXCEPT ![n] = 0] ELSE age
    /\ closed' = IF Tombstones /\ renewed[r] THEN [closed EXCEPT ![n] = @ \cup {r}] ELSE closed
    /\ gone' = IF renewed[r] THEN [gone EXCEPT ![r] = @ \cup {n}] ELSE gone
    /\ UNCHANGED <<state, round, validity, asked, votes, renewing, renewed, ofGuard, working, counts>>

------------------------------------------------------------------------------
(* Nodes that break the bounds *)

(* The node restarts empty, or is flushed.  What was sent with the former  *)
(* marker is refused from now on, unless the marker stays.                 *)
Forget(n) ==
    /\ losses < Losses
    /\ key' = [key EXCEPT ![n] = Free]
    /\ age' = [age EXCEPT ![n] = 0]
    /\ closed' = [closed EXCEPT ![n] = {}]
    /\ losses' = losses + 1
    /\ IF Marker # {} /\ ~MarkerStays
       THEN /\ known' = [r \in Requests |-> known[r] \ {n}]
            /\ asked' = [r \in Requests |-> asked[r] \ {n}]
       ELSE UNCHANGED <<known, asked>>
    /\ UNCHANGED <<state, round, validity, votes, renewing, renewed, gone, wait, working, jumps>>

(* A host notices it, and does not ask the node for as long as a lease that *)
(* the node forgot may be valid.  Renewals count sooner.                    *)
Meet(r, n) ==
    /\ state[r] \in {"idle", "asking", "held"}
    /\ n \notin known[r]
    /\ known' = [known EXCEPT ![r] = @ \cup {n}]
    /\ wait' = [wait EXCEPT ![r][n] = Quarantine]
    /\ UNCHANGED <<atNodes, state, round, validity, asked, votes, renewing, renewed, gone, working,
                   counts>>

Jump(n) ==
    /\ jumps < Jumps
    /\ key[n] # Free
    /\ key' = [key EXCEPT ![n] = Free]
    /\ age' = [age EXCEPT ![n] = 0]
    /\ jumps' = jumps + 1
    /\ UNCHANGED <<closed, state, round, validity, asked, votes, renewing, renewed, gone, ofGuard,
                   working, losses>>

Next ==
    \/ Tick
    \/ \E r \in Requests :
        \/ Ask(r) \/ BeginRenewal(r) \/ Release(r) \/ Work(r) \/ EndWork(r)
        \/ \E n \in Nodes : Acquire(r, n) \/ Renew(r, n) \/ ExecuteRelease(r, n) \/ Meet(r, n)
    \/ \E n \in Nodes : Expire(n) \/ Forget(n) \/ Jump(n)

Spec == Init /\ [][Next]_vars

AnyOrder == Permutations(Nodes) \cup Permutations(Requests)

------------------------------------------------------------------------------

Exclusive == \A r, s \in Requests : r # s => validity[r] = 0 \/ validity[s] = 0
StaysReleased == \A r \in Requests : \A n \in gone[r] : key[n] # <<r, "renewal">>
OneWorks == Cardinality(working) <= 1
=============================================================================
