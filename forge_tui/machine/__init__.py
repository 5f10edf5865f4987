"""What the machine is doing while we measure: read only, nothing is ever set.

Standard library only; may import records. Used by the judge and by the model process, in the user's interpreter.
"""
