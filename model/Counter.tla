------------------------------ MODULE Counter ------------------------------
(* The counter of one node for one resource, which expires.                *)
(*                                                                         *)
(* Increases: each grant gets a larger counter than all before, though     *)
(* the counter may have expired in between.                                *)
(*                                                                         *)
(* Hosts propose any time, as their clocks may be wrong in any way.  Only  *)
(* the node's clock counts.  Tokens has several nodes, and relies on this  *)
(* model.                                                                  *)
EXTENDS Naturals

CONSTANTS
    Time,           \* the end of the model
    Bound,          \* LUA_CLOCK_BOUND_US: a proposal further behind counts as this far behind
    Window,         \* COUNTER_NEAR_MS: a counter and a proposal with the same first digits are near
    Keep,           \* LUA_COUNTER_KEEP_MS: life of a counter beyond its own time
    OwnTime,        \* the life counts from the counter's own time, if that is ahead of the clock
    Behind,         \* a proposal far behind the node's clock counts as Bound behind
    FarToo,         \* a counter that leaves its window keeps its expiry, too
    Late,           \* commands are executed after the counters of later grants have expired
    Set             \* the node's clock is set forward by this much in all, and set back

VARIABLES
    now,            \* by the node's clock
    ahead,          \* of it: the clock was set forward, and not yet back
    set,            \* so far the clock was set forward in all
    counter,        \* 0: there is none
    ends,           \* when the counter expires
    largest,        \* history: of all grants
    wrong           \* history: a grant was not larger

vars == <<now, ahead, set, counter, ends, largest, wrong>>

Max(x, y) == IF x > y THEN x ELSE y
IsNear(x, y) == x \div Window = y \div Window

Init ==
    /\ now = Bound + 1 /\ ahead = 0 /\ set = 0
    /\ counter = 0 /\ ends = 0 /\ largest = 0 /\ wrong = FALSE

Expire == counter' = IF ends <= now' THEN 0 ELSE counter

Pass ==
    /\ \E time \in now + 1 .. Time : now' = time
    /\ Expire
    /\ UNCHANGED <<ahead, set, ends, largest, wrong>>

SetForward ==
    /\ \E time \in 1 .. Set - set :
        /\ now + time <= Time
        /\ now' = now + time /\ ahead' = ahead + time /\ set' = set + time
    /\ Expire
    /\ UNCHANGED <<ends, largest, wrong>>

SetBack ==
    /\ ahead > 0
    /\ now' = now - ahead /\ ahead' = 0
    /\ UNCHANGED <<set, counter, ends, largest, wrong>>

EndOf(value) == (IF OwnTime THEN Max(value, now) ELSE now) + Keep

(* The span of a grant counts as one. *)
Acquire(proposal) ==
    LET near == counter > 0 /\ IsNear(counter, proposal)
        allowed == IF near \/ ~Behind THEN proposal ELSE Max(proposal, now - Bound)
        raised == IF counter > 0 THEN Max(allowed, counter + 1) ELSE allowed
        stays == near /\ (FarToo \/ IsNear(counter, raised))
    IN /\ near \/ proposal <= now + Bound
       /\ raised <= Time
       /\ counter' = raised
       /\ ends' = IF stays THEN ends ELSE EndOf(raised)
       /\ wrong' = (wrong \/ raised <= largest)
       /\ largest' = Max(largest, raised)
       /\ UNCHANGED <<now, ahead, set>>

(* A confirm, a renewal or a release raises the counter to the token of a   *)
(* grant, or above it: another node, by its own clock, has counted further. *)
Raise(value) ==
    /\ value > counter
    /\ value >= largest \/ Late
    /\ counter' = value
    /\ ends' = EndOf(value)
    /\ largest' = Max(largest, value)
    /\ UNCHANGED <<now, ahead, set, wrong>>

Next ==
    \/ Pass \/ SetForward \/ SetBack
    \/ \E number \in 1 .. Time : Acquire(number) \/ Raise(number)

Spec == Init /\ [][Next]_vars

Increases == ~wrong
=============================================================================
