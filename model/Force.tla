------------------------------- MODULE Force -------------------------------
(* Forced releases: an operator deletes the key of a lock and raises the   *)
(* counters, in rounds, while the holder renews.                           *)
(*                                                                         *)
(* StaysForced: after a complete forced release no majority of nodes       *)
(* renews the released lease.                                              *)
(* LaterTokens: the tokens of a grant that was asked for after a complete  *)
(* forced release are larger than all tokens of the released lease.        *)
(* Spares: if the look shows one holder at a majority, no command deletes  *)
(* the key of another request.                                             *)
(*                                                                         *)
(* There is no time, as in Tokens: a key expires whenever it likes.  What  *)
(* was sent may be executed at any later time, or never.                   *)
(* README.md tells which function of the code does each action.            *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Nodes,
    Requests,        \* each for one lease, with one attempt
    Holder,          \* the request that has the lease at first, by all nodes but one
    Plain,           \* a plain Redlock client, which raises no counter, may take the key
    Raises,          \* so far may a round of renewals raise the bound
    MaxBound,        \* no round raises the bound beyond this
    MaxCounter,      \* a command that would raise a counter beyond this is refused
    Quorum,          \* so many nodes decide about grants and renewals
    Enough,          \* so many nodes decide about the forced release
    Rounds,          \* so many rounds may the forced release have
    RaisesCounters,  \* the command raises the counter; else it deletes the key and no more
    Until,           \* "above all former counters", or a variant: "a majority has executed"
    ByValue,         \* the command spares the keys of requests other than the shown holder
    Conditions,      \* of a node with another's key that counts: "holder shown", "not seen", "ours"
    SeesHolder,      \* the look finds the holder's key at some node
    OwnAttempt,      \* renewals have an attempt of their own
    BoundMoves,      \* "by a majority", or a variant: "at once"
    Distrusted,      \* a node that may have forgotten does not count
    Again,           \* so many acquires are executed late, or a second time
    Ends,            \* so many keys expire, at most
    Losses,          \* so many times may a node lose its data before it answers a round
    LaterLosses      \* the same afterwards

VARIABLES
    key,             \* at each node: <<request, "grant" or "renewal">>
    counter,         \* at each node
    lost,            \* the nodes that have lost their data
    state,           \* of each request
    told, token, agreed, bound, raise, sent, renewing, votes,    \* as in Tokens
    step,            \* of the operator: "looks", "forces", "complete"
    round,
    seen,            \* the requests with a key at the look
    shown,           \* the request that a majority showed, or None
    order,           \* of each round: the least new counter, and the request to be deleted
    executed,        \* of each round: the nodes that have executed the command
    answer,          \* of each node to the look, or in the present round
    spared,          \* history: `shown` after the look, so the only request whose key may be deleted
    later,           \* history: the requests that asked after the forced release was complete
    renewed,         \* history: the nodes that have renewed the released lease since then
    robbed,          \* history: a command deleted another's key, though the look showed the holder
    again, ends, losses

ofNodes == <<key, counter, lost>>
ofLease == <<state, told, token, agreed, bound, raise, sent, renewing, votes>>
ofOperator == <<step, round, seen, shown, order, executed, answer, spared>>
history == <<later, renewed, robbed>>
counts == <<again, ends, losses>>
vars == <<ofNodes, ofLease, ofOperator, history, counts>>

None == 99
Anyone == 98
Nobody == 97
Stranger == 96
Free == <<None, "free">>
Max(S) == CHOOSE x \in S \cup {0} : \A y \in S : x >= y
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Silent == [said |-> "nothing", key |-> None, before |-> None, after |-> None]

Init ==
    /\ \E without \in Nodes :
        /\ key = [n \in Nodes |-> IF n = without THEN Free ELSE <<Holder, "grant">>]
        /\ counter = [n \in Nodes |-> IF n = without THEN 0 ELSE 1]
        /\ told = [r \in Requests |->
                     [n \in Nodes |-> IF r = Holder /\ n # without THEN 1 ELSE 0]]
    /\ lost = {}
    /\ state = [r \in Requests |-> IF r = Holder THEN "held" ELSE "idle"]
    /\ token = [r \in Requests |-> IF r = Holder THEN 1 ELSE 0]
    /\ agreed = [r \in Requests |-> {}]
    /\ bound = token
    /\ raise = token
    /\ sent = [r \in Requests |-> {}]
    /\ renewing = [r \in Requests |-> FALSE]
    /\ votes = [r \in Requests |-> {}]
    /\ step = "looks"
    /\ round = 0
    /\ seen = {}
    /\ shown = None
    /\ order = [i \in 1 .. Rounds |-> <<0, None>>]
    /\ executed = [i \in 1 .. Rounds |-> {}]
    /\ answer = [n \in Nodes |-> Silent]
    /\ spared = None
    /\ later = {}
    /\ renewed = {}
    /\ robbed = FALSE
    /\ again = 0
    /\ ends = 0
    /\ losses = 0

------------------------------------------------------------------------------
(* Grants and renewals, as in Tokens.  A grant has one token.  Only the    *)
(* first holder renews.                                                    *)

Ask(r) ==
    /\ state[r] = "idle"
    /\ state' = [state EXCEPT ![r] = "asking"]
    /\ later' = IF step = "complete" THEN later \cup {r} ELSE later
    /\ UNCHANGED <<ofNodes, told, token, agreed, bound, raise, sent, renewing, votes,
                   ofOperator, renewed, robbed, counts>>

Hear(r, answers, confirmed) ==
    LET yes == {n \in Nodes : answers[n] > 0}
        t == IF token[r] > 0 THEN token[r]
             ELSE IF Cardinality(yes) >= Quorum THEN Max({answers[n] : n \in Nodes}) ELSE 0
        same == {n \in yes : n \in confirmed \/ answers[n] = t}
    IN /\ told' = [told EXCEPT ![r] = answers]
       /\ token' = [token EXCEPT ![r] = t]
       /\ IF t > 0 /\ Cardinality(same) >= Quorum
          THEN /\ state' = [state EXCEPT ![r] = "held"]
               /\ bound' = [bound EXCEPT ![r] = t]
               /\ agreed' = [agreed EXCEPT ![r] = {}]
          ELSE /\ agreed' = [agreed EXCEPT ![r] = confirmed]
               /\ UNCHANGED <<state, bound>>

Acquire(r, n) ==
    /\ state[r] # "idle"
    /\ n \notin lost
    /\ key[n] = Free
    /\ counter[n] < MaxCounter
    /\ key' = [key EXCEPT ![n] = <<r, "grant">>]
    /\ counter' = [counter EXCEPT ![n] = @ + 1]
    /\ IF state[r] = "asking" /\ told[r][n] = 0
       THEN /\ Hear(r, [told[r] EXCEPT ![n] = counter'[n]], agreed[r])
            /\ UNCHANGED again
       ELSE /\ again < Again
            /\ again' = again + 1
            /\ UNCHANGED <<state, told, token, agreed, bound>>
    /\ UNCHANGED <<lost, raise, sent, renewing, votes, ofOperator, history, ends, losses>>

Confirm(r, n) ==
    /\ state[r] = "asking"
    /\ token[r] > 0 /\ told[r][n] > 0 /\ told[r][n] < token[r]
    /\ key[n] = <<r, "grant">> /\ counter[n] = told[r][n]
    /\ counter' = [counter EXCEPT ![n] = token[r]]
    /\ Hear(r, told[r], agreed[r] \cup {n})
    /\ UNCHANGED <<key, lost, raise, sent, renewing, votes, ofOperator, history, counts>>

BeginRenewal(r) ==
    /\ r = Holder
    /\ \E more \in Raises :
        /\ bound[r] + more <= MaxBound
        /\ ~renewing[r] \/ raise[r] # bound[r] + more
        /\ raise' = [raise EXCEPT ![r] = bound[r] + more]
        /\ bound' = IF BoundMoves = "at once" THEN [bound EXCEPT ![r] = @ + more] ELSE bound
        /\ sent' = [sent EXCEPT ![r] = @ \cup {<<bound'[r], bound[r] + more>>}]
    /\ renewing' = [renewing EXCEPT ![r] = TRUE]
    /\ votes' = [votes EXCEPT ![r] = {}]
    /\ UNCHANGED <<ofNodes, state, told, token, agreed, ofOperator, history, counts>>

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
            ELSE /\ votes' = [votes EXCEPT ![r] = @ \cup {n}]
                 /\ UNCHANGED <<renewing, bound>>
       ELSE UNCHANGED <<renewing, votes, bound>>
    /\ renewed' = IF step = "complete" /\ r = Holder THEN renewed \cup {n} ELSE renewed
    /\ UNCHANGED <<lost, state, told, token, agreed, raise, sent, ofOperator, later, robbed,
                   counts>>

------------------------------------------------------------------------------
(* The nodes *)

Expire(n) ==
    /\ key[n] # Free /\ ends < Ends
    /\ key' = [key EXCEPT ![n] = Free]
    /\ ends' = ends + 1
    /\ UNCHANGED <<counter, lost, ofLease, ofOperator, history, again, losses>>

Lose(n) ==
    /\ losses < IF step = "complete" \/ answer[n].said \in {"deleted", "kept"} THEN LaterLosses
                ELSE Losses
    /\ counter[n] > 0
    /\ key' = [key EXCEPT ![n] = Free]
    /\ counter' = [counter EXCEPT ![n] = 0]
    /\ lost' = lost \cup {n}
    /\ losses' = losses + 1
    /\ UNCHANGED <<ofLease, ofOperator, history, again, ends>>

TakePlainly(n) ==
    /\ Plain
    /\ key[n] = Free
    /\ key' = [key EXCEPT ![n] = <<Stranger, "plain">>]
    /\ UNCHANGED <<counter, lost, ofLease, ofOperator, history, counts>>

------------------------------------------------------------------------------
(* The operator *)

Said == {n \in Nodes : answer[n].said # "nothing"}
With(r) == {n \in Said : answer[n].key = r}

Look(n) ==
    /\ step = "looks"
    /\ n \notin Said
    /\ answer' = [answer EXCEPT ![n] = [said |-> "looked", key |-> key[n][1],
                                         before |-> counter[n], after |-> None]]
    /\ UNCHANGED <<ofNodes, ofLease, step, round, seen, shown, order, executed, spared, history,
                   counts>>

(* The request whose key a majority had, when the nodes were asked. *)
ShownNow ==
    LET most == {r \in Requests \cup {Stranger} : Cardinality(With(r)) >= Quorum}
    IN IF most = {} THEN None ELSE CHOOSE r \in most : TRUE

EndLook ==
    LET most == Max({answer[n].before : n \in Said})
    IN /\ step = "looks"
       /\ Cardinality(Said) >= Quorum
       /\ SeesHolder => With(Holder) # {}
       /\ step' = "forces"
       /\ round' = 1
       /\ seen' = {r \in Requests : With(r) # {}}
       /\ shown' = ShownNow
       /\ spared' = ShownNow
       /\ order' = [order EXCEPT ![1] = <<IF most = 0 THEN 0 ELSE most + 1,
                                          IF ByValue /\ ShownNow # None THEN ShownNow ELSE Anyone>>]
       /\ answer' = [n \in Nodes |-> Silent]
       /\ UNCHANGED <<ofNodes, ofLease, executed, history, counts>>

(* A node executes the command of a round, perhaps late.  The answer may   *)
(* get lost.                                                               *)
Force(n, i) ==
    LET least == order[i][1]
        deletes == key[n] = Free \/ order[i][2] \in {Anyone, key[n][1]}
        after == IF ~RaisesCounters THEN counter[n]
                 ELSE IF counter[n] > 0 /\ counter[n] >= least THEN counter[n] + 1 ELSE least
        hears == [said |-> IF Distrusted /\ n \in lost THEN "may have forgotten"
                           ELSE IF deletes THEN "deleted" ELSE "kept",
                  key |-> key[n][1], before |-> counter[n],
                  after |-> IF deletes THEN after ELSE None]
    IN /\ i <= round /\ n \notin executed[i]
       /\ executed' = [executed EXCEPT ![i] = @ \cup {n}]
       /\ deletes => after <= MaxCounter
       /\ IF deletes
          THEN /\ key' = [key EXCEPT ![n] = Free]
               /\ counter' = [counter EXCEPT ![n] = after]
               /\ robbed' = (robbed \/ (spared # None /\ key[n][1] \notin {None, spared}))
          ELSE UNCHANGED <<key, counter, robbed>>
       /\ \/ step = "forces" /\ i = round /\ answer' = [answer EXCEPT ![n] = hears]
          \/ UNCHANGED answer
       /\ UNCHANGED <<lost, ofLease, step, round, seen, shown, order, spared, later, renewed,
                      counts>>

(* Does a node with another's key count?  If the acquire of this request   *)
(* found no key of the former holder, it raised the counter by one.        *)
OtherCounts(n) ==
    /\ answer[n].said = "kept" /\ answer[n].before > 0
    /\ "holder shown" \in Conditions => shown # None
    /\ "not seen" \in Conditions => answer[n].key \notin seen
    /\ "ours" \in Conditions => answer[n].key # Stranger

Counted == {n \in Nodes : answer[n].said = "deleted" \/ OtherCounts(n)}
Before(n) == IF answer[n].said = "deleted" THEN answer[n].before ELSE answer[n].before - 1
After(n) == IF answer[n].said = "deleted" THEN answer[n].after ELSE answer[n].before

IsComplete ==
    IF Until = "a majority has executed" \/ ~RaisesCounters THEN Cardinality(Counted) >= Enough
    ELSE \E m \in {Before(n) : n \in Counted} :
           Cardinality({n \in Counted : Before(n) <= m /\ (m = 0 \/ After(n) > m)}) >= Enough

(* The operator judges the round when all nodes have answered, or time is  *)
(* up.  A call that fails just stays here: it promises nothing.            *)
Judge ==
    /\ step = "forces"
    /\ LET known == IF shown = None /\ round = 1 THEN ShownNow ELSE shown
           enough == {m \in {After(n) : n \in Counted} :
                        Cardinality({n \in Counted : After(n) <= m}) >= Enough}
       IN IF IsComplete
          THEN /\ step' = "complete"
               /\ shown' = None
               /\ seen' = {}
               /\ UNCHANGED <<round, order>>
          ELSE /\ enough # {} /\ round < Rounds
               /\ round' = round + 1
               /\ shown' = known
               /\ order' = [order EXCEPT ![round + 1] =
                              <<Min(enough) + 1, IF ~ByValue THEN Anyone
                                                 ELSE IF known = None THEN Nobody ELSE known>>]
               /\ UNCHANGED <<step, seen>>
    /\ answer' = [n \in Nodes |-> Silent]
    /\ UNCHANGED <<ofNodes, ofLease, executed, spared, history, counts>>

Next ==
    \/ \E r \in Requests :
        \/ Ask(r) \/ BeginRenewal(r)
        \/ \E n \in Nodes : Acquire(r, n) \/ Confirm(r, n) \/ Renew(r, n)
    \/ \E n \in Nodes :
        \/ Expire(n) \/ Lose(n) \/ TakePlainly(n) \/ Look(n)
        \/ \E i \in 1 .. Rounds : Force(n, i)
    \/ EndLook \/ Judge

Spec == Init /\ [][Next]_vars

AnyOrder == Permutations(Nodes)

------------------------------------------------------------------------------

StaysForced == Cardinality(renewed) < Quorum
LaterTokens ==
    \A r \in later : state[r] = "held" /\ step = "complete" => token[r] > bound[Holder]
Spares == ~robbed
=============================================================================