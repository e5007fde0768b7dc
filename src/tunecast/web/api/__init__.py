"""What may be asked over HTTP.

endpoints.py   Every address of the API, declared once: what is asked, by whom it is worked on, and what it takes
job_schema.py  The fields of a job as JSON Schema, from their own declarations (job/knob.py)
openapi.py     /api/openapi.json, made of the declarations that the routes are made of
query.py       The query of a GET as the object that its endpoint takes
schema.py      The part of JSON Schema that the API's declarations use, and what of a value breaks one
"""
