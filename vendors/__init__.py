"""What stands outside our walls: the scripted vendor and the local models.

Imported by no service.
"""
