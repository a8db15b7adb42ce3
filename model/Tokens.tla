------------------------------- MODULE Tokens -------------------------------
(* Fencing tokens: the counters of the nodes, spans, the compare-and-set,  *)
(* the tokens that are kept for hand-over, and the bound of renewals with  *)
(* its tombstone.                                                          *)
(*                                                                         *)
(* Unique: no token is given out by two grants.                            *)
(* InOrder: the tokens of a grant are larger than all that were returned   *)
(* before it was asked for.                                                *)
(* RenewedInOrder: a renewal that succeeded implies that no later token    *)
(* had been returned when its round began.                                 *)
(* StaysReleased: no renewal creates a key again where its release was     *)
(* executed.                                                               *)
(*                                                                         *)
(* There is no time: a key expires whenever it likes, since these hold     *)
(* under any clocks.  What was sent may be executed at any later time,     *)
(* any number of times, or never.  Hosts may give up at any time.          *)
(* README.md tells which function of the code does each action.            *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Nodes,
    Requests,        \* each for one lease, with one attempt
    Span,            \* tokens of a grant
    Proposals,       \* what hosts propose, in no order: their clocks are wrong in any way
    Raises,          \* so far may a round of renewals raise the bound; {}: there are no renewals
    MaxCounter,      \* counters beyond this are not looked at
    Quorum,          \* so many nodes decide
    WriteBack,       \* "compare and set", or a variant: "no", "if the key is ours", "always"
    SpanIsCounted,   \* a node raises its counter by the whole span
    OwnAttempt,      \* renewals have an attempt of their own
    BoundMoves,      \* "by a majority", or a variant: "at once"
    Releases,        \* leases are released; else their keys just expire
    Tombstones,      \* a release raises the counter over the bound of renewals
    Ends,            \* so many keys expire, at most
    Losses           \* so many times may a node lose its counter

VARIABLES
    key,             \* at each node: <<request, "grant" or "renewal">>
    counter,         \* at each node
    state,           \* of each request
    proposal,
    told,            \* the counter that each node granted to each request, as the host heard
    token,           \* T: the largest of these, when a majority granted; 0: not chosen
    agreed,          \* the nodes that confirmed T
    last,            \* the last of the tokens that the grant gives out, by hand-over
    bound,           \* of renewals
    raise,           \* what the present round raises the bound to
    sent,            \* the renewals that were ever sent: <<bound, raise>>
    renewing,        \* whether a round of renewals is out
    votes,           \* the nodes that said yes in it
    released,        \* the nodes that executed the release of a request
    floor,           \* history: the largest token that had been returned when it was asked for
    overtaken,       \* history: whether a later token had been returned when the round began
    wrong,           \* history: a renewal succeeded all the same
    losses,
    ends             \* so many keys have expired

vars == <<key, counter, state, proposal, told, token, agreed, last, bound, raise, sent,
          renewing, votes, released, floor, overtaken, wrong, losses, ends>>
ofHost == <<state, proposal, told, token, agreed, last, bound, raise, sent, renewing, votes>>
history == <<floor, overtaken, wrong>>

None == 99
Free == <<None, "free">>
Max(S) == CHOOSE x \in S \cup {0} : \A y \in S : x >= y
First(r) == token[r] - Span + 1
Returned(r) == last[r] > 0

Init ==
    /\ key = [n \in Nodes |-> Free]
    /\ counter = [n \in Nodes |-> 0]
    /\ state = [r \in Requests |-> "idle"]
    /\ proposal = [r \in Requests |-> 0]
    /\ told = [r \in Requests |-> [n \in Nodes |-> 0]]
    /\ token = [r \in Requests |-> 0]
    /\ agreed = [r \in Requests |-> {}]
    /\ last = [r \in Requests |-> 0]
    /\ bound = [r \in Requests |-> 0]
    /\ raise = [r \in Requests |-> 0]
    /\ sent = [r \in Requests |-> {}]
    /\ renewing = [r \in Requests |-> FALSE]
    /\ votes = [r \in Requests |-> {}]
    /\ released = [r \in Requests |-> {}]
    /\ floor = [r \in Requests |-> 0]
    /\ overtaken = [r \in Requests |-> FALSE]
    /\ wrong = FALSE
    /\ losses = 0
    /\ ends = 0

------------------------------------------------------------------------------
(* The host *)

Ask(r) ==
    /\ state[r] = "idle"
    /\ state' = [state EXCEPT ![r] = "asking"]
    /\ \E p \in Proposals : proposal' = [proposal EXCEPT ![r] = p]
    /\ floor' = [floor EXCEPT ![r] = Max({last[s] : s \in Requests})]
    /\ UNCHANGED <<key, counter, told, token, agreed, last, bound, raise, sent, renewing,
                   votes, released, overtaken, wrong, losses, ends>>

(* The host hears what a node answered, and decides.  It decides at once:   *)
(* to hear later could only mean that fewer tokens had been returned by     *)
(* then.  T is chosen when a majority has granted.  The lock is granted     *)
(* when a majority has T, and its tokens are First(r) .. last[r], one for   *)
(* each hand-over.  All of them count as returned at once.                  *)
Hear(r, answers, confirmed) ==
    LET yes == {n \in Nodes : answers[n] > 0}
        t == IF token[r] > 0 THEN token[r]
             ELSE IF Cardinality(yes) >= Quorum THEN Max({answers[n] : n \in Nodes}) ELSE 0
        same == {n \in yes : n \in confirmed \/ answers[n] = t \/ WriteBack = "no"}
    IN /\ told' = [told EXCEPT ![r] = answers]
       /\ token' = [token EXCEPT ![r] = t]
       /\ IF t > 0 /\ Cardinality(same) >= Quorum
          THEN /\ state' = [state EXCEPT ![r] = "held"]
               /\ last' = [last EXCEPT ![r] = t]
               /\ bound' = [bound EXCEPT ![r] = t]
               /\ agreed' = [agreed EXCEPT ![r] = {}]
          ELSE /\ agreed' = [agreed EXCEPT ![r] = confirmed]
               /\ UNCHANGED <<state, last, bound>>

(* A round that was out has failed. *)
BeginRenewal(r) ==
    /\ state[r] = "held"
    /\ \E more \in Raises :
        /\ bound[r] + more <= MaxCounter
        /\ raise' = [raise EXCEPT ![r] = bound[r] + more]
        /\ bound' = IF BoundMoves = "at once" THEN [bound EXCEPT ![r] = @ + more] ELSE bound
        /\ sent' = [sent EXCEPT ![r] = @ \cup {<<bound'[r], bound[r] + more>>}]
    /\ renewing' = [renewing EXCEPT ![r] = TRUE]
    /\ votes' = [votes EXCEPT ![r] = {}]
    /\ overtaken' = [overtaken EXCEPT ![r] =
                       \E s \in Requests \ {r} : Returned(s) /\ token[s] > token[r]]
    /\ UNCHANGED <<key, counter, state, proposal, told, token, agreed, last,
                   released, floor, wrong, losses, ends>>

(* A request that is asking is undone, a lease is released. *)
Release(r) ==
    /\ Releases
    /\ state[r] \in {"asking", "held"}
    /\ state' = [state EXCEPT ![r] = "released"]
    /\ renewing' = [renewing EXCEPT ![r] = FALSE]
    /\ votes' = [votes EXCEPT ![r] = {}]
    /\ agreed' = [agreed EXCEPT ![r] = {}]
    /\ UNCHANGED <<key, counter, proposal, told, token, last, bound, raise, sent,
                   released, history, losses, ends>>

------------------------------------------------------------------------------
(* A node executes a command of the host.  The answer may get lost. *)

Acquire(r, n) ==
    /\ state[r] # "idle"
    /\ LET granted == IF SpanIsCounted THEN Max({counter[n] + Span, proposal[r]})
                      ELSE Max({counter[n] + 1, proposal[r], Span})
       IN CASE key[n] = Free ->
                /\ granted <= MaxCounter
                /\ key' = [key EXCEPT ![n] = <<r, "grant">>]
                /\ counter' = [counter EXCEPT ![n] = granted]
            [] key[n] = <<r, "grant">> -> UNCHANGED <<key, counter>>
            [] OTHER -> FALSE
    /\ \/ /\ key'[n] = <<r, "grant">> /\ state[r] = "asking" /\ told[r][n] = 0
          /\ Hear(r, [told[r] EXCEPT ![n] = counter'[n]], agreed[r])
       \/ UNCHANGED <<state, told, token, agreed, last, bound>>
    /\ UNCHANGED <<proposal, raise, sent, renewing, votes, released, history, losses, ends>>

Confirm(r, n) ==
    /\ WriteBack # "no"
    /\ token[r] > 0 /\ told[r][n] > 0 /\ told[r][n] < token[r]
    /\ \/ WriteBack = "always"
       \/ key[n] = <<r, "grant">> /\ (WriteBack = "if the key is ours" \/ counter[n] = told[r][n])
    /\ counter' = [counter EXCEPT ![n] = token[r]]
    /\ IF state[r] = "asking" THEN Hear(r, told[r], agreed[r] \cup {n})
       ELSE UNCHANGED <<state, told, token, agreed, last, bound>>
    /\ UNCHANGED <<key, proposal, raise, sent, renewing, votes, released, history, losses, ends>>

(* When a majority has renewed, the lease is valid for longer, and all      *)
(* tokens up to the raised bound are its own.                               *)
Renew(r, n) ==
    \E command \in sent[r] :
    /\ \/ key[n] = <<r, "renewal">>
       \/ ~OwnAttempt /\ key[n] = <<r, "grant">>
       \/ key[n] \in {Free, <<r, "grant">>} /\ counter[n] <= command[1]
    /\ key' = [key EXCEPT ![n] = IF OwnAttempt THEN <<r, "renewal">> ELSE <<r, "grant">>]
    /\ counter' = [counter EXCEPT ![n] = Max({@, command[2]})]
    /\ IF renewing[r] /\ command = <<bound[r], raise[r]>>
       THEN IF Cardinality(votes[r] \cup {n}) >= Quorum
            THEN /\ renewing' = [renewing EXCEPT ![r] = FALSE]
                 /\ votes' = [votes EXCEPT ![r] = {}]
                 /\ bound' = [bound EXCEPT ![r] = Max({@, raise[r]})]
                 /\ last' = [last EXCEPT ![r] = Max({@, raise[r]})]
                 /\ wrong' = (wrong \/ overtaken[r])
            ELSE /\ votes' = [votes EXCEPT ![r] = @ \cup {n}]
                 /\ UNCHANGED <<renewing, bound, last, wrong>>
       ELSE UNCHANGED <<renewing, votes, bound, last, wrong>>
    /\ UNCHANGED <<state, proposal, told, token, agreed, raise, sent, released, floor, overtaken,
                   losses, ends>>

ExecuteRelease(r, n) ==
    /\ state[r] = "released"
    /\ key' = IF key[n][1] = r THEN [key EXCEPT ![n] = Free] ELSE key
    /\ counter' = IF Tombstones /\ sent[r] # {}
                  THEN [counter EXCEPT ![n] = Max({@, bound[r] + 1})] ELSE counter
    /\ released' = [released EXCEPT ![r] = @ \cup {n}]
    /\ UNCHANGED <<ofHost, history, losses, ends>>

Expire(n) ==
    /\ key[n] # Free /\ ends < Ends
    /\ key' = [key EXCEPT ![n] = Free]
    /\ ends' = ends + 1
    /\ UNCHANGED <<counter, ofHost, released, history, losses>>

Lose(n) ==
    /\ losses < Losses
    /\ counter[n] > 0
    /\ key' = [key EXCEPT ![n] = Free]
    /\ counter' = [counter EXCEPT ![n] = 0]
    /\ losses' = losses + 1
    /\ UNCHANGED <<ofHost, released, history, ends>>

Next ==
    \/ \E r \in Requests :
        \/ Ask(r) \/ BeginRenewal(r) \/ Release(r)
        \/ \E n \in Nodes : Acquire(r, n) \/ Confirm(r, n) \/ Renew(r, n) \/ ExecuteRelease(r, n)
    \/ \E n \in Nodes : Expire(n) \/ Lose(n)

Spec == Init /\ [][Next]_vars

AnyOrder == Permutations(Nodes) \cup Permutations(Requests)

------------------------------------------------------------------------------

Unique ==
    \A r, s \in Requests :
        r # s /\ Returned(r) /\ Returned(s) => First(r) .. last[r] \cap First(s) .. last[s] = {}
InOrder == \A r \in Requests : Returned(r) => First(r) > floor[r]
RenewedInOrder == ~wrong
StaysReleased == \A r \in Requests : \A n \in released[r] : key[n] # <<r, "renewal">>
=============================================================================
