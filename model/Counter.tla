------------------------------ MODULE Counter ------------------------------
(* The counter of one node for one resource, which expires.                *)
(*                                                                         *)
(* Increases: each grant gets a larger counter than all before, though     *)
(* the counter may have expired in between.                                *)
(*                                                                         *)
(* Time is that of the node.  Tokens has several nodes, and relies on      *)
(* this.                                                                   *)
EXTENDS Naturals

CONSTANTS
    Time,           \* the end of it
    Bound,          \* proposals may be this far ahead of the node's clock, or count as this far behind
    Window,         \* counter and proposal in one such interval are near: their first digits agree
    Keep,           \* how long a counter is kept, besides what it is ahead of time
    Late,           \* commands are executed after later grants, and their counters, have ended
    CrossesEdge,    \* a near proposal leaves the life of the counter, though that is raised over the edge
    Skew,           \* by so much are the clocks of hosts wrong, at most
    Steps           \* so many times is the node's clock set forward, and back

VARIABLES
    now,
    counter,        \* 0: there is none
    ends,           \* when it expires
    largest,        \* history: of all grants
    wrong,          \* history: a grant was not larger
    steps

vars == <<now, counter, ends, largest, wrong, steps>>

Max(x, y) == IF x > y THEN x ELSE y
Min(x, y) == IF x < y THEN x ELSE y
Forever == Time + 1

Init == now = Window /\ counter = 0 /\ ends = 0 /\ largest = 0 /\ wrong = FALSE /\ steps = 0

Pass ==
    /\ now < Time
    /\ now' = now + 1
    /\ counter' = IF counter > 0 /\ ends <= now' THEN 0 ELSE counter
    /\ UNCHANGED <<ends, largest, wrong, steps>>

(* A span counts as one. *)
Acquire(proposal) ==
    LET near == counter > 0 /\ proposal \div Window = counter \div Window
        allowed == IF near THEN proposal
                   ELSE Max(proposal, IF now > Bound THEN now - Bound ELSE 0)
        raised == Max(allowed, IF counter > 0 THEN counter + 1 ELSE 0)
        ahead == IF counter > 0 /\ allowed <= counter /\ raised > proposal THEN raised - proposal
                 ELSE 0
    IN /\ proposal <= now + Skew /\ now <= proposal + Skew
       /\ near \/ proposal <= now + Bound
       /\ raised <= Time + Bound + Window
       /\ counter' = raised
       /\ ends' = IF near /\ (CrossesEdge \/ raised \div Window = counter \div Window) THEN ends
                   ELSE Min(now + Keep + ahead, Forever)
       /\ wrong' = (wrong \/ raised <= largest)
       /\ largest' = Max(largest, raised)
       /\ UNCHANGED <<now, steps>>

(* A confirmation, a renewal or a tombstone of the last grant raises it to  *)
(* what another node may have granted now.  The host's clock may be wrong, so the host says  *)
(* no more than Keep.                                                      *)
Raise(value) ==
    /\ value > counter
    /\ value >= largest \/ Late
    /\ value <= now + Skew + 1
    /\ counter' = value
    /\ ends' = now + Keep
    /\ largest' = Max(largest, value)
    /\ UNCHANGED <<now, wrong, steps>>

(* The clock is far ahead for a moment. *)
StepClock ==
    /\ steps < Steps
    /\ steps' = steps + 1
    /\ counter' = 0
    /\ UNCHANGED <<now, ends, largest, wrong>>

Next ==
    \/ Pass
    \/ \E proposal \in 1 .. Time + Bound + 1 : Acquire(proposal)
    \/ \E value \in 1 .. Time + Bound + Window : Raise(value)
    \/ StepClock

Spec == Init /\ [][Next]_vars

Increases == ~wrong
=============================================================================
